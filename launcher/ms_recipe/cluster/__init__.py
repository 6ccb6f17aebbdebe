"""Nodes: the hostfile, the agent that runs one node's script, the launchers that start it, the supervisor."""

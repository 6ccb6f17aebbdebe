"""Existing shell scripts: read without running them (shell), understood (program), imported and compared."""

"""Facts of machines (doctor_probe.py) -> findings, differences between machines, and what could not be seen."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ms_recipe.checks.spaces import human
from ms_recipe.errors import Problem
from ms_recipe.upstream import Pin, requirement_conflicts
from ms_recipe.upstream.needs import satisfies, version

#: Packages asked for besides those of the pin.
ALSO = ("torch", "torch_npu", "mindspeed", "megatron-core", "pybind11", "ninja", "accelerate", "sentencepiece")
OPEN_FILES = 65536
SHM = 8 * 1024**3
#: What must be the same on all nodes, and whether a difference is an error.
COMPARED = {"python": True, "machine": True, "torch": True, "torch_npu": True, "transformers": True, "tokenizers": True,
            "numpy": False, "peft": False, "CANN": True, "driver": False, "NPUs": True, "Megatron": True, "tree": True,
            "executable": False, "open files": False}


@dataclass(frozen=True)
class Ailment:
    """One finding on a host: ``severity`` error or warning."""

    id: str
    severity: str
    host: str
    what: str
    fix: str = ""

    def problem(self) -> Problem:
        """As a line."""
        return Problem(f"{self.what} [{self.id}]", self.host, self.fix)


@dataclass
class Diagnosis:
    """All findings on all hosts; ``facts`` by host, ``unchecked`` what was not seen, and where."""

    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    findings: list[Ailment] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)

    @property
    def errors(self) -> list[Ailment]:
        """What keeps a run from starting or makes it wrong."""
        return [f for f in self.findings if f.severity == "error"]

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {"ok": not self.errors, "findings": [asdict(f) for f in self.findings], "unchecked": self.unchecked,
                "facts": self.facts}


def program(pin: Pin, tree: str = "", disks: Sequence[str] = (), port: int | None = None) -> str:
    """The probe's text, with what it is asked in front."""
    ask = {"packages": sorted({*(p.name for p in pin.requires.packages), *ALSO}), "tree": tree, "parts": list(pin.parts),
           "package": pin.megatron_package, "disks": list(disks), "port": port}
    text = Path(__file__).with_name("doctor_probe.py").read_text(encoding="utf-8")
    line = "ASK: dict[str, Any] = {}"
    return text.replace(line, f"{line[:-2]}json.loads({json.dumps(json.dumps(ask))})")


def _python(f: dict[str, Any], pin: Pin) -> Iterator[tuple[str, str, str, str]]:
    have, need = tuple(f["python"][:2]), version(pin.requires.python.lstrip(">= ") or "3.9")
    if have < need[:2]:
        yield ("python", "error", f"Python {have[0]}.{have[1]} < {'.'.join(map(str, need[:2]))} "
               "(transformers for Qwen3 cannot be installed on it)", "use an image or environment with a newer Python")


def _packages(f: dict[str, Any], pin: Pin) -> Iterator[tuple[str, str, str, str]]:
    have = f["packages"]
    for p in pin.requires.packages:
        found, why = have.get(p.name), f" ({p.why})" if p.why else ""
        pip = f"pip install '{p.name}{p.spec}'"
        if found is None:
            if p.name != "setuptools" or not f.get("pkg_resources_packaging"):
                yield "package", "error", f"{p.name} is not installed, pin {pin.name} needs {p.name}{p.spec}{why}", pip
        elif p.at_least and version(found) < version(p.at_least):
            yield ("package", "error", f"{p.name} {found} < {p.at_least} needed for qwen3{why}", pip)
        elif not satisfies(found, p.spec):
            hard = p.name in ("numpy", "tokenizers", "setuptools", "pandas", "datasets")
            if p.name == "setuptools" and f.get("pkg_resources_packaging"):
                continue
            yield ("package", "error" if hard else "warning", f"{p.name} {found} is not {p.spec}{why}", pip)
    if f.get("pkg_resources_packaging") is False:
        yield ("pkg-resources", "error", "pkg_resources.packaging cannot be imported, Megatron core_r0.8.0 does "
               "(megatron/core/tensor_parallel/random.py:10)", "pip install 'setuptools<70'")
    if have.get("megatron-core"):
        yield ("megatron-core", "warning", f"a pip-installed megatron-core {have['megatron-core']} is there: it silently "
               "completes a partial tree", "pip uninstall megatron-core (the stub upstream alone needs it)")


def _ascend(f: dict[str, Any], pin: Pin) -> Iterator[tuple[str, str, str, str]]:
    a, have = f["ascend"], f["packages"]
    torch, npu = have.get("torch"), have.get("torch_npu")
    on_npu = bool(a["devices"] or a["npu_smi"] or npu)
    if torch is None:
        yield "torch", "error", "torch is not installed", f"pip install torch=={(pin.requires.torch or ('2.6.0',))[-1]}"
    if not on_npu:
        return
    if npu is None:
        yield "torch-npu", "error", "torch_npu is not installed", "install the torch_npu of this torch"
    elif torch and version(npu)[:2] != version(torch)[:2]:
        yield ("torch-npu", "error", f"torch_npu {npu} does not belong to torch {torch}",
               f"install torch=={'.'.join(map(str, version(npu)))}, or the torch_npu of torch {torch}")
    if npu and pin.requires.torch_npu and not any(version(npu)[:2] == version(t)[:2] for t in pin.requires.torch_npu):
        yield ("torch-npu", "warning", f"torch_npu {npu} is none of {', '.join(pin.requires.torch_npu)} that upstream was "
               "tested with", "")
    if not a["home"] and not a["set_env"]:
        yield ("cann", "error", "ASCEND_HOME_PATH is not set and there is no /usr/local/Ascend/ascend-toolkit/set_env.sh",
               "install CANN, or source its set_env.sh in cluster.setup")
    elif a["home"] and not a["home_is_there"]:
        yield "cann", "error", f"ASCEND_HOME_PATH is {a['home']}, which does not exist", "source CANN's set_env.sh"
    if a["cann"] and pin.requires.cann and not any(a["cann"].startswith(c[:3]) for c in pin.requires.cann):
        yield "cann", "warning", f"CANN {a['cann']} is none of {', '.join(pin.requires.cann)}", ""
    if a["devices"] and a["npu_smi"] and a["npu_smi_status"] not in (0, None):
        yield "npu-smi", "error", f"npu-smi ends with status {a['npu_smi_status']}", "look at the driver: npu-smi info"


def _tree(f: dict[str, Any], pin: Pin) -> Iterator[tuple[str, str, str, str]]:
    t, sync = f["tree"], f"ms-recipe vendor sync {pin.name}"
    if t is None:
        return
    if not t["exists"]:
        yield "tree", "error", f"there is no tree at {t['path']}", f"{sync}, or name its place with cluster.tree"
        return
    if t["missing"]:
        yield ("megatron-partial", "error", f"{t['path']}: Megatron is not whole, missing: {', '.join(t['missing'])} (a "
               "pip-installed megatron-core does not replace them)", sync)
    if t["megatron"] and t["megatron"] != pin.megatron_version:
        yield ("megatron-version", "error", f"{t['path']}: expected Megatron {pin.megatron_version} "
               f"(core_r{pin.megatron_version}), found {t['megatron']}", sync)
    if not t["mindspeed"]:
        yield "mindspeed", "error", f"there is no MindSpeed beside {t['path']}", sync
    for folder, said in t["git"].items():
        if said["status"]:
            safe = f"git config --global --add safe.directory {folder}" if "dubious" in said["said"] else ""
            yield "git", "warning", f"git refuses {folder}: {said['said'].splitlines()[0] if said['said'] else '?'}", safe
    for file, text in t["requirements"].items():
        for p in requirement_conflicts(pin, text or "", file):
            yield "requirements", "warning", f"{p.where}: {p.what}", p.fix


def _machine(f: dict[str, Any], pin: Pin) -> Iterator[tuple[str, str, str, str]]:
    limits = f["limits"]
    if f["system"] != "Linux":
        yield "system", "error", f"{f['system']} is not Linux", ""
    if f["tree"] and not f["tree"].get("helper") and not (f["compiler"] and f["make"]):
        lacking = " and ".join(n for n, p in (("a C++ compiler", f["compiler"]), ("make", f["make"])) if not p)
        yield "compiler", "error", f"{lacking} missing: Megatron builds its data helper", "apt install g++ make"
    if not f["torchrun"]:
        yield ("torchrun", "error", "torchrun is not found in the run's environment",
               "give the conda, venv or set_env.sh lines as cluster.setup")
    if 0 <= limits["open_files"] < OPEN_FILES:
        yield ("open-files", "warning", f"{limits['open_files']} open files are allowed, {OPEN_FILES} are usual",
               f"ulimit -n {OPEN_FILES} in cluster.setup")
    if limits["shm"] and limits["shm"]["total"] < SHM:
        yield ("shm", "warning", f"/dev/shm has {human(limits['shm']['total'])}: loaders and HCCL use it",
               "docker run --shm-size 16g")
    if f["port"]:
        yield "port", "error", f"the master's port cannot be bound: {f['port']}", "--set cluster.master_port=N"
    for path, d in f["disks"].items():
        if not d["writable"]:
            yield "disk", "error", f"{path} is not writable", ""
        elif d["free"] < 20 * 1024**3:
            yield "disk", "warning", f"{human(d['free'])} free for {path}", ""
    for name in ("HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        wanted = f["environment"].get(name, "").lstrip("=")
        if wanted and not wanted.startswith("^"):
            lost = [w for w in wanted.split(",") if not any(i.startswith(w) for i in f["interfaces"])]
            if lost:
                yield ("interface", "error", f"{name}={wanted}, but there is no {', '.join(lost)}",
                       f"it has {', '.join(i for i in f['interfaces'] if i != 'lo')}")
    for name in ("HCCL_CONNECT_TIMEOUT", "HCCL_EXEC_TIMEOUT"):
        value = f["environment"].get(name)
        if value is not None and not value.isdigit():
            yield "environment", "error", f"{name}={value} is not a whole number of seconds", "write 1800"


RULES = (_python, _packages, _ascend, _tree, _machine)


def unseen(f: dict[str, Any]) -> list[str]:
    """What the facts do not say."""
    a, out = f["ascend"], []
    if not a["devices"] and not a["npu_smi"]:
        out.append("NPUs, driver, CANN and torch_npu: there is no Ascend device")
    elif not a["npu_smi"]:
        out.append("the number and health of NPUs: there is no npu-smi")
    if (a["devices"] or a["npu_smi"]) and not a["cann"]:
        out.append("the CANN version: no version file found")
    if f["tree"] is None:
        out.append("the tree: none was named")
    if f["port"] is None:
        out.append("the master's port")
    return out


def compared(f: dict[str, Any]) -> dict[str, Any]:
    """The values of a machine that all nodes should share."""
    a, p, t = f["ascend"], f["packages"], f["tree"] or {}
    return {"python": ".".join(map(str, f["python"])), "machine": f["machine"], "CANN": a["cann"], "driver": a["driver"],
            "NPUs": a["npus"] if a["npus"] is not None else a["devices"], "Megatron": t.get("megatron"),
            "tree": t.get("exists"), "executable": f["executable"], "open files": f["limits"]["open_files"],
            **{n: p.get(n) for n in ("torch", "torch_npu", "transformers", "tokenizers", "numpy", "peft")},
            **{k: v for k, v in f["environment"].items() if k.startswith(("HCCL_", "ASCEND_", "GLOO_")) and k not in
               ("ASCEND_RT_VISIBLE_DEVICES", "HCCL_IF_IP")}}


def differences(facts: dict[str, dict[str, Any]]) -> Iterator[Ailment]:
    """Machines that differ from most of the others."""
    values = {host: compared(f) for host, f in facts.items()}
    for name in dict.fromkeys(k for v in values.values() for k in v):
        counts = Counter(str(v.get(name)) for v in values.values())
        if len(counts) < 2:
            continue
        (usual, times), *rest = counts.most_common()
        severity = "error" if COMPARED.get(name, False) else "warning"
        if rest[0][1] == times:
            said = ", ".join(f"{v} on {n}" for v, n in counts.most_common())
            yield Ailment("differs", severity, "all nodes", f"{name} differs and no value has the majority: {said}",
                          "make them the same")
            continue
        for host, v in values.items():
            if str(v.get(name)) != usual:
                yield Ailment("differs", severity, host, f"{name} is {v.get(name)}, {times} of {len(values)} nodes have "
                              f"{usual}", "make it the same")


def diagnose(facts: dict[str, dict[str, Any]], pin: Pin, failed: dict[str, str] | None = None) -> Diagnosis:
    """All rules on all machines; ``failed`` are hosts that gave no facts, and why."""
    found = Diagnosis(facts)
    for host, why in (failed or {}).items():
        found.findings.append(Ailment("reachable", "error", host, why))
    lost: dict[str, list[str]] = {}
    for host, f in facts.items():
        for rule in RULES:
            found.findings += [Ailment(i, s, host, what, fix) for i, s, what, fix in rule(f, pin)]
        for text in unseen(f):
            lost.setdefault(text, []).append(host)
    found.unchecked = [f"{text}" + (f" ({', '.join(hosts)})" if len(facts) > 1 and len(hosts) < len(facts) else "")
                       for text, hosts in lost.items()]
    if len(facts) > 1:
        found.findings += differences(facts)
    found.findings.sort(key=lambda a: a.severity)
    return found

"""Two hosts on one machine: network namespaces with a cable between them, and Slurm's daemons on both.

Everything lies in namespaces of the calling process (mounts, network, processes), so nothing of the machine changes
and nothing remains. Needs root, `ip`, `unshare` and `nsenter`; Slurm's part needs Debian's packages slurmctld, slurmd,
slurm-client and munge.
"""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

HOSTS = ("host1", "host2")
_ADDRESSES = {"host1": "10.77.0.1", "host2": "10.77.0.2"}
_PRIVATE = ("/etc/slurm", "/etc/munge", "/var/lib/slurm", "/run/munge", "/run/netns")

_SLURM = """\
ClusterName=test
SlurmctldHost=host1
AuthType=auth/munge
CryptoType=crypto/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SlurmUser=root
StateSaveLocation=/var/lib/slurm/ctld
SlurmdSpoolDir=/var/lib/slurm/%n
SlurmctldPidFile=/var/lib/slurm/ctld.pid
SlurmdPidFile=/var/lib/slurm/%n.pid
SlurmctldLogFile=/var/lib/slurm/ctld.log
SlurmdLogFile=/var/lib/slurm/%n.log
ReturnToService=2
SlurmdTimeout=10
MinJobAge=600
SchedulerParameters=requeue_delay=1
NodeName=host1,host2 CPUs=1 RealMemory=4000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def reenter_in_namespaces() -> None:
    """Starts this program again in namespaces of its own, in place of this process."""
    if os.environ.get("CLUSTER_NAMESPACES"):
        return
    namespaces = ["--mount", "--net", "--pid", "--fork", "--mount-proc", "--kill-child", "--propagation", "private"]
    os.environ["CLUSTER_NAMESPACES"] = "1"
    os.execvp("unshare", ["unshare", *namespaces, sys.executable, *sys.argv])


def connect_hosts(work: Path) -> None:
    """Makes both hosts and the cable between them."""
    for folder in _PRIVATE:
        Path(folder).mkdir(parents=True, exist_ok=True)
        _run("mount", "-t", "tmpfs", "none", folder)

    names = work / "etc-hosts"
    names.write_text("127.0.0.1 localhost\n" + "".join(f"{ip} {name}\n" for name, ip in _ADDRESSES.items()))
    _run("mount", "--bind", str(names), "/etc/hosts")

    _run("ip", "link", "set", "lo", "up")
    for name in HOSTS:
        _run("ip", "netns", "add", name)
    _run("ip", "link", "add", "eth0", "netns", "host1", "type", "veth", "peer", "name", "eth0", "netns", "host2")
    for name in HOSTS:
        _run("ip", "-n", name, "addr", "add", f"{_ADDRESSES[name]}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _run("ip", "-n", name, "link", "set", device, "up")


def pull_cable(pulled: bool) -> None:
    """Cuts or restores the connection between the hosts; packets are lost without a sign."""
    _run("ip", "-n", "host2", "link", "set", "eth0", "down" if pulled else "up")


def on_host(name: str, words: list[str]) -> list[str]:
    """The command that runs `words` on a host, of one core."""
    core = str(HOSTS.index(name) % (os.cpu_count() or 1))
    shell = f'hostname {name} && exec taskset -c {core} "$@"'
    return ["nsenter", f"--net=/run/netns/{name}", "unshare", "--uts", "--mount", "sh", "-c", shell, "sh", *words]


def kill_host(name: str) -> None:
    """Kills every process of a host at once, as a power failure does."""
    found = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=True)
    for number in found.stdout.split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(number), signal.SIGKILL)


def start_slurm() -> None:
    """Starts the controller on the first host and a daemon on each, and waits until both are idle."""
    Path("/etc/slurm/slurm.conf").write_text(_SLURM)
    for name in ("ctld", *HOSTS):
        Path("/var/lib/slurm", name).mkdir(exist_ok=True)
    key = Path("/etc/munge/munge.key")
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o400)
    for path in ("/etc/munge", "/run/munge", str(key)):
        _run("chown", "munge", path)
    _run("runuser", "-u", "munge", "--", "munged", "--force")

    _run(*on_host("host1", ["slurmctld"]))
    for name in HOSTS:
        start_slurm_daemon(name)
    deadline = time.monotonic() + 60
    while slurm("sinfo", "--noheader", "--format", "%T").split() != ["idle"]:
        if time.monotonic() > deadline:
            raise RuntimeError(f"Slurm does not start: {Path('/var/lib/slurm/ctld.log').read_text()[-2000:]}")
        time.sleep(0.5)


def start_slurm_daemon(name: str) -> None:
    _run(*on_host(name, ["slurmd", "-N", name]))


def slurm(*words: str) -> str:
    """What a command of Slurm prints on the first host."""
    done = subprocess.run(on_host("host1", list(words)), capture_output=True, text=True, check=False, timeout=60)
    return done.stdout


def _run(*words: str) -> None:
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)

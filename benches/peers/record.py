"""What a figure has to carry: commit, GPU, driver, clocks, temperature. No torch here."""

import datetime
import os
import platform
import subprocess
from pathlib import Path

STATE = {
    "clocks.sm": "sm_mhz",
    "clocks.mem": "memory_mhz",
    "temperature.gpu": "celsius",
    "power.draw": "watt",
    "clocks_event_reasons.active": "clocks_held_by",
}


def header(commit, index=0):
    """Where and when; `commit` comes from the option, TREFOIL_COMMIT, or the git checkout this file is in."""
    name, driver = _query(index, ["name", "driver_version"])
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": commit or os.environ.get("TREFOIL_COMMIT") or _git_commit() or "unknown",
        "gpu": name,
        "driver": driver,
        "python": platform.python_version(),
    }


def gpu_state(index=0):
    """Clocks, temperature and power at this moment; what nvidia-smi does not know is missing."""
    return state_of(list(STATE), _query(index, list(STATE)))


def known_fields(index=0):
    """What of it this nvidia-smi tells of this GPU; nothing where there is none."""
    return [field for field, value in zip(STATE, _query(index, list(STATE))) if not value.startswith("[")]


def state_of(fields, values):
    """Our names and the values that nvidia-smi gave for these fields."""
    values = [value.strip() for value in values]
    return {STATE[field]: _number(value) for field, value in zip(fields, values) if not value.startswith("[")}


def query_command(index, fields, *more):
    """nvidia-smi asked for fields of one GPU."""
    return ["nvidia-smi", f"--id={index}", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits", *more]


def _query(index, fields):
    try:
        done = subprocess.run(query_command(index, fields), capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ["[unknown]"] * len(fields)
    values = [value.strip() for value in done.stdout.strip().split(",")]
    if done.returncode == 0 and len(values) == len(fields):
        return values
    if len(fields) == 1:
        return ["[unknown]"]
    return [_query(index, [field])[0] for field in fields]  # a field that this nvidia-smi does not have fails all


def _number(text):
    try:
        return float(text)
    except ValueError:
        return text


def _git_commit():
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None

"""Running the programs that are measured."""
import json
import subprocess
import sys


def try_json(command, before=None):
    """The JSON that a command prints; None, and its message on stderr, if it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          preexec_fn=before, check=False)
    if done.returncode != 0:
        print(f"failed ({done.returncode}): {' '.join(command)}\n{done.stderr}", file=sys.stderr)
        return None
    return json.loads(done.stdout)


def run_json(command):
    """As above, but ends the benchmark if the command fails."""
    result = try_json(command)
    if result is None:
        sys.exit(1)
    return result

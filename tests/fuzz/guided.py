"""`python -m tests.fuzz.guided`: the same parsers under libFuzzer, which keeps what reaches new lines of the engine.

Needs atheris (`pip install atheris`), which nothing else here does. A process a parser runs for a while over the
corpus of the other fuzz tests and over what earlier runs found, kept in `.fuzz/`.
"""

import argparse
import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
KEPT = ROOT / ".fuzz"
INPUT_BYTES_MAX = 1 << 16

KINDS = ("snapshot", "swap", "log", "identity")


def fuzz(kind: str, seconds: int, seed: int) -> None:
    """In a process of its own: libFuzzer ends it."""
    atheris = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["ullage.engine"]):
        inputs = importlib.import_module("tests.fuzz.inputs")
    corpus = KEPT / kind
    corpus.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(inputs.seeds(kind)):
        (corpus / f"seed-{number}").write_bytes(data)
    options = [f"-max_total_time={seconds}", f"-seed={seed}", f"-max_len={INPUT_BYTES_MAX}", "-timeout=10"]
    options += ["-rss_limit_mb=2048", f"-artifact_prefix={KEPT}/{kind}-", "-print_final_stats=1", "-verbosity=0"]
    atheris.Setup([kind, *options, str(corpus)], lambda data: inputs.run(kind, data))
    atheris.Fuzz()


def main() -> int:
    """Every parser in turn; 1 if one lets anything through but the engine's errors."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.guided", description="Fuzz, guided by coverage.")
    parser.add_argument("--seconds", type=int, default=60, help="for each parser")
    parser.add_argument("--seed", type=int, default=20261121)
    parser.add_argument("--kind", choices=KINDS, help="this one only, in this process")
    options = parser.parse_args()
    if options.kind:
        fuzz(options.kind, options.seconds, options.seed)
    if importlib.util.find_spec("atheris") is None:
        print("fuzzing guided by coverage is left out: it needs `pip install atheris`")
        return 0
    failed = []
    for kind in KINDS:
        arguments = ["--kind", kind, "--seconds", str(options.seconds), "--seed", str(options.seed)]
        command = [sys.executable, "-m", "tests.fuzz.guided", *arguments]
        result = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
        units = [line.split()[-1] for line in result.stderr.splitlines() if "number_of_executed_units" in line]
        if result.returncode:
            print(f"{result.stdout}{result.stderr[-4000:]}\n{kind}: failed, the input is in .fuzz/", flush=True)
        else:
            print(f"{kind}: nothing found in {int(units[-1]):,} files", flush=True)
        failed += [kind] if result.returncode else []
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""The Java process that drives Apache NiFi's own classes (bench/nifi), its building, and its line protocol.

One job a line to its stdin, one answer a line from its stdout, flat JSON both. `NIFI_SRC` names a checkout of a NiFi
release, whose classes are compiled then; otherwise they come from Maven Central, which has older ones only. With those
of NiFi 1 only the programs are compiled that write repositories, and judge them. What is downloaded and compiled lies
in the user's cache, by version and content.
"""

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from xml.etree import ElementTree as ET

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "bench" / "nifi"
FRAMEWORK = "nifi-framework-bundle/nifi-framework"
PROVENANCE = "nifi-framework-bundle/nifi-framework-extensions/nifi-provenance-repository-bundle"
MODULES = (
    f"{FRAMEWORK}/nifi-framework-core",
    f"{FRAMEWORK}/nifi-framework-components",
    f"{FRAMEWORK}/nifi-framework-core-api",
    f"{FRAMEWORK}/nifi-repository-models",
    f"{FRAMEWORK}/nifi-flowfile-repo-serialization",
    "nifi-commons/nifi-write-ahead-log",
    "nifi-commons/nifi-schema-utils",
    "nifi-commons/nifi-properties",
    "nifi-commons/nifi-property-utils",
    "nifi-commons/nifi-utils",
    "nifi-commons/nifi-data-provenance-utils",
    f"{PROVENANCE}/nifi-persistent-provenance-repository",
    "nifi-framework-api",
)
"""Where a checkout has the classes that the repositories need."""

ONLY_OF_SOURCES = ("Events.java", "Provenance.java")
"""Maven Central has no provenance repository of any 2.x release."""

JUDGING = ("Sample.java", "Judge.java", "NarThreadContextClassLoader.java")
"""What is compiled with the classes of NiFi 1."""

API_OF_SOURCES = "2.8.0"
"""nifi-api comes from Maven Central: releases to 2.11.0 use nothing in these classes that is newer."""

COMPILER = "org.eclipse.jdt:ecj:3.40.0"
"""For a Java runtime that comes without a compiler."""

HEAP = "4g"
"""A million FlowFiles take about one; less would make the collector work."""

POM = "{http://maven.apache.org/POM/4.0.0}"


class HarnessFailed(Exception):
    """The harness could not be built, or a job in it failed."""


class Harness:
    """A running harness that works in `directory`; a context manager. `start` builds it first."""

    def __init__(self, command: Sequence[str], directory: Path, version: str) -> None:
        self.directory = directory
        self.version = version
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - closed with the harness
        self._process = subprocess.Popen(
            [*command, str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        hello = self.ask("hello")
        self.java = str(hello["java"])
        self.has_provenance = bool(hello.get("provenance"))

    @classmethod
    def start(cls, directory: Path) -> Self:
        """HarnessFailed says what is missing, or what did not compile."""
        home = java_home()
        source = os.environ.get("NIFI_SRC")
        version, classpath = build(home, Path(source).resolve() if source else None)
        command = [str(home / "bin" / "java"), f"-Xms{HEAP}", f"-Xmx{HEAP}", "-cp", classpath, "harness.Harness"]
        return cls(command, directory, version)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()

    def ask(self, job: str, repository: str = "", **fields: int | bool | str) -> dict[str, Any]:
        """One job's answer. HarnessFailed with what NiFi said."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"job": job, "repository": repository, **fields}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "the process ended"}
        if "error" in answer:
            self._errors.seek(0)
            raise HarnessFailed(f"{job} {fields} in NiFi: {answer['error']}\n{self._errors.read()[-2_000:]}")
        return answer

    def kill(self) -> None:
        """End the process as a crash does: in the middle of whatever it was doing."""
        self._process.kill()
        self._process.wait()

    def seconds(self, job: str, repository: str, **fields: int | bool) -> float:
        """How long the measured part of a job took."""
        return float(self.ask(job, repository, **fields)["nanos"]) / 1e9

    def forget(self, repository: str) -> None:
        """Close a repository and remove its files, some of which NiFi's last tasks may be removing just now."""

        def unless_gone(_call: object, _path: str, info: tuple[object, BaseException, object]) -> None:
            if not isinstance(info[1], FileNotFoundError):
                raise info[1]

        self.ask("close", repository)
        shutil.rmtree(self.directory / repository, onerror=unless_gone)


def java_home() -> Path:
    """A Java that can run NiFi, with or without a compiler; HarnessFailed says what is missing."""
    found = subprocess.run([ROOT / "tools" / "java"], capture_output=True, text=True, check=False)
    if found.returncode:
        raise HarnessFailed(found.stderr.strip())
    return Path(found.stdout.strip())


def build(home: Path, source: Path | None, release: str = "") -> tuple[str, str]:
    """NiFi's version and the class path of the compiled harness, from the cache if nothing has changed.

    `release`: one of NiFi 1 that Maven Central has, instead of the one that pom.xml names.
    """
    version = release or version_of(
        source / "pom.xml" if source else SOURCES / "pom.xml", "version" if source else "nifi.version"
    )
    return version, built(
        home, f"nifi-{version}", SOURCES, source, lambda place: _compile(home, source, place, release)
    )


def built(home: Path, name: str, sources: Path, checkout: Path | None, compile_into: Callable[[Path], None]) -> str:
    """The class path of what was compiled from `sources`, and a checkout, with one Java: made once, then cached."""
    files = sorted([*sources.rglob("*.java"), sources / "pom.xml", home / "release"])
    key = hashlib.sha256(b"".join(file.read_bytes() for file in files) + str(checkout).encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ullage"
    place = cache / f"{name}-{key}"
    if not place.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            compile_into(Path(scratch) / "built")
            (Path(scratch) / "built").rename(place)
    libraries = (place / "libraries").read_text(encoding="utf-8").strip()
    return f"{place / 'classes'}{os.pathsep}{libraries}"


def version_of(pom: Path, name: str) -> str:
    """The project's version, or a property, as a pom.xml states it."""
    project = ET.parse(pom).getroot()
    found = project.findtext(POM + name) or project.findtext(f"{POM}properties/{POM}{name}")
    if found is None:
        raise HarnessFailed(f"{pom} states no {name}: NIFI_SRC must name a checkout of Apache NiFi")
    return found


def _compile(home: Path, source: Path | None, place: Path, release: str) -> None:
    files = sorted(SOURCES.rglob("*.java"))
    options = ["-Preleased"]
    paths = [SOURCES]
    if release:
        files = [file for file in files if file.name in JUDGING]
        options = ["-Preleased,one", f"-Dnifi.version={release}", f"-Dnifi-api.version={release}"]
    elif source:
        lucene = version_of(source / PROVENANCE / "pom.xml", "lucene.version")
        options = [f"-Dnifi-api.version={API_OF_SOURCES}", f"-Dlucene.version={lucene}"]
        paths += [source / module / "src" / "main" / "java" for module in MODULES]
    else:
        files = [file for file in files if file.name not in ONLY_OF_SOURCES]
    compile_java(home, place, SOURCES / "pom.xml", options, paths, files)


def compile_java(
    home: Path, place: Path, pom: Path, options: Sequence[str], paths: Sequence[Path], files: Sequence[Path]
) -> None:
    """Compile `files`, and what they need of the source paths, into `place`, with the libraries of a pom."""
    (place / "classes").mkdir(parents=True)
    maven = ["mvn", "--quiet", "--batch-mode", "--file", str(pom)]
    _run([*maven, "dependency:build-classpath", f"-Dmdep.outputFile={place / 'libraries'}", *options], home)
    compiler = [str(home / "bin" / "javac")]
    if not (home / "bin" / "javac").exists():
        _run([*maven, "dependency:copy", f"-Dartifact={COMPILER}", f"-DoutputDirectory={place}"], home)
        compiler = [
            str(home / "bin" / "java"),
            "-jar",
            *map(str, place.glob("ecj-*.jar")),
            "-source",
            "21",
            "-target",
            "21",
        ]
    _run(
        [
            *(*compiler, "-nowarn", "-proc:none", "-encoding", "UTF-8"),
            *("-d", str(place / "classes")),
            *("-cp", (place / "libraries").read_text(encoding="utf-8").strip()),
            *("-sourcepath", os.pathsep.join(map(str, paths))),
            *map(str, files),
        ],
        home,
    )


def _run(command: list[str], home: Path) -> None:
    environment = {**os.environ, "JAVA_HOME": str(home)}
    try:
        result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise HarnessFailed(f"{command[0]} is needed and not installed") from error
    if result.returncode:
        raise HarnessFailed(f"{command[0]} failed:\n{(result.stdout + result.stderr)[-4_000:]}")

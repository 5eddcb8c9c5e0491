"""A ContentRepository's spec, as this release reads it."""

from ullage.contract import API_VERSION, ContentRepositorySpec, ContractError, parse
from ullage_agent.cli.exits import ExitCode
from ullage_agent.kubectl.cluster import Object
from ullage_agent.kubectl.trouble import Trouble


def spec_of(repository: Object) -> ContentRepositorySpec:
    """Its settings. Trouble where this release does not understand them: the cluster's may be newer."""
    metadata = repository["metadata"]
    named = {key: metadata[key] for key in ("name", "namespace")}
    document = {"apiVersion": API_VERSION, "kind": "ContentRepository", "metadata": named}
    try:
        return parse({**document, "spec": repository.get("spec") or {}}).spec
    except ContractError as error:
        raise Trouble(
            f"{named['namespace']}/{named['name']}: {error}. If the cluster's Ullage is newer than this program, "
            "install the same version here",
            ExitCode.USAGE,
        ) from error

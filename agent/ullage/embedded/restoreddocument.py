"""The description of a repository that is made of a backup or a share."""

import os

from ullage.contract import (
    ContainerSettings,
    ContentRepository,
    ContentRepositorySpec,
    HostPath,
    Metadata,
    StorageSettings,
)
from ullage.engine.opening import RepositoryIdentity
from ullage.errors import InvalidArgument


def document_of(
    identity: RepositoryIdentity, root: str | os.PathLike[str], mapped: dict[str, str]
) -> ContentRepository:
    """What it becomes below `root`. InvalidArgument for a container that it does not have."""
    if unknown := sorted(mapped.keys() - identity.containers.keys()):
        raise InvalidArgument(f"the backup has no container {unknown[0]}, only {', '.join(identity.containers)}")
    storage = StorageSettings(
        host_path=HostPath(path=os.path.abspath(root)),
        containers=tuple(
            ContainerSettings(name=name, sub_path=path) for name, path in (identity.containers | mapped).items()
        ),
        sections=identity.sections,
    )
    return ContentRepository(metadata=Metadata(name="embedded"), spec=ContentRepositorySpec(storage=storage))

"""The tables of a fleet in Spark's catalog: `ullage_<repository>.<table>`, for whoever speaks SQL alone."""

import re
from typing import Any, Final

from pyspark.sql import SparkSession

from ullage_spark.addresses import KUBERNETES, place_of
from ullage_spark.errors import SparkSourceError
from ullage_spark.settings import SourceOptions, as_options
from ullage_spark.tables import COLUMNS, OPENLY_KEPT

TABLES: Final = tuple(table for table in COLUMNS if table != "content")
"""Those that a fleet's database has. `content` moves every byte, so whoever means it makes it."""

TABLES_OF: Final = "Tables of "
"""How the comment of a fleet's database begins."""


def register(spark: SparkSession, repository: str = "", **options: Any) -> str:
    """Make the tables of a fleet known to the session's catalog, those that were there anew; the database's name.

    `repository` names it, and may be left out where `endpoint` is `kubernetes:namespace/name`. Options: those that name
    the fleet and its credentials. SparkSourceError if the database has the tables of another repository.
    """
    made = statements(repository, **options)
    settings = SourceOptions.of(as_options(options))
    database, meant = database_of(repository, settings), _comment(settings)
    found = spark.catalog.getDatabase(database).description if spark.catalog.databaseExists(database) else None
    if meant and found and found.startswith(TABLES_OF) and found != meant:
        raise SparkSourceError(
            f"database {database} has the {found.lower()}, not those of {settings.endpoint}: say another name with "
            f"repository=, or drop it (DROP DATABASE {database} CASCADE)"
        )
    for statement in made:
        spark.sql(statement)
    return database


def statements(repository: str = "", **options: Any) -> list[str]:
    """The same as SQL: one statement for the database, and one for each table."""
    given = as_options(options)
    settings = SourceOptions.of(given)
    if settings.token:
        raise SparkSourceError(OPENLY_KEPT)
    database = database_of(repository, settings)
    shown = {name: value for name, value in given.items() if value}
    return [
        f"CREATE DATABASE IF NOT EXISTS {database} COMMENT {_quoted(_comment(settings) or 'Tables of a fleet')}",
        *(
            f"CREATE OR REPLACE TABLE {database}.{table} USING ullage "
            f"OPTIONS ({', '.join(f'`{name}` {_quoted(value)}' for name, value in {**shown, 'table': table}.items())})"
            for table in TABLES
        ),
    ]


def database_of(repository: str, settings: SourceOptions) -> str:
    """Catalogs take letters, digits and underscores: anything else in a repository's name becomes an underscore."""
    if not repository and settings.endpoint.startswith(KUBERNETES):
        repository = settings.endpoint.rpartition("/")[2].removeprefix(KUBERNETES)
    if not repository:
        raise SparkSourceError("name the repository: the fleet's tables become ullage_<repository>.<table>")
    return "ullage_" + re.sub(r"\W", "_", repository.lower(), flags=re.ASCII)


def _comment(settings: SourceOptions) -> str:
    """What the database says of itself, where Kubernetes tells repositories apart: names of two may make one database.
    Addresses come and go, so they say nothing.
    """
    if not settings.endpoint.startswith(KUBERNETES):
        return ""
    try:
        namespace, repository = place_of(settings.endpoint.removeprefix(KUBERNETES))
    except OSError:  # of the pod's own namespace, and this is no pod
        return ""
    return f"{TABLES_OF}{KUBERNETES}{namespace}/{repository}"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

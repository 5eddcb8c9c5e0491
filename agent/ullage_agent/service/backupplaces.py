"""The buckets that a service may write to, as its settings have them."""

from collections.abc import Sequence

from ullage.contract import BackupBucket
from ullage.errors import InvalidArgument
from ullage.interface.buckets import Bucket, authorities_beside, checked_bucket


def allowed_bucket(allowed: Sequence[BackupBucket], url: str) -> Bucket:
    """The bucket that a URL names, reached as the configuration has it: a client that chose the server could have the
    agent send its content, and ask others' servers, wherever it likes. InvalidArgument.
    """
    fitting = [each for each in allowed if f"{url}/".startswith(f"{each.url.rstrip('/')}/")]
    if not fitting:
        raise InvalidArgument(f"{url} is in none of the places that spec.service.backupBuckets allows")
    by = max(fitting, key=lambda each: len(each.url))
    return checked_bucket(  # no `..` leads up from there
        Bucket(
            url=url,
            endpoint=by.endpoint,
            region=by.region,
            ca_file=by.ca_file or authorities_beside(by.credentials_file),
            credentials_file=by.credentials_file,
            encryption=by.encryption,
            encryption_key=by.encryption_key,
        )
    )


def waits_for_credentials(bucket: Bucket) -> str:
    """What is told while their file is not there yet."""
    return f"waits for {bucket.credentials_file}: in a cluster it is the key `credentials` of the bucket's Secret"

"""What a repository can do, whether it lies on this machine's disks or is served by another one.

`ullage.open` and `ullage.connect` give a `Repository`; both keep every promise that stands here. In the examples
`repository` is one that was just made, and `session` is a session of it.

Units: sizes and offsets are bytes, times are milliseconds since 1970, durations say their unit in their names.
"""

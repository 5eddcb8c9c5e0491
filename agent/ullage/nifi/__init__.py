"""Apache NiFi's own repositories, 1.16 to 2.11, read where they lie, beside a NiFi that runs: nothing here writes.

`home` finds them, `moment` reads what FlowFiles there are, `contents` what files; `survey` says what holds the disk,
`pins` which FlowFiles.
Every length that a file states is bounded before it is believed; what can't be read is named, and the rest is read.
"""

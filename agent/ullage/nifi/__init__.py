"""Apache NiFi's own repositories, 1.16 to 2.11, read where they lie, beside a NiFi that runs.

`home` finds them, `moment` reads what FlowFiles there are, `contents` what files, `events` what may be replayed;
`survey` says what holds the disk, `pins` which FlowFiles, `reclaimplan` what could come back, `rewriteplan` what could
be brought together. `reclaiming` alone changes anything, by the calls of `changes`, and only once NiFi has stopped.
`importplan` and `claimreader` have what another system needs to take all of it over.
Every length that a file states is bounded before it is believed; what can't be read is named, and the rest is read.
"""

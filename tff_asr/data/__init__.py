"""From a corpus on disk to cohorts of clients and padded batches.

    client_data    a corpus as clients; `index` says where their records lie
    cohorts        the clients that take part in a round: its cohort
    records        reads records (`schema`), at the client
    pipeline       from records to padded batches of features
    examples       the same for pre-training, from all speakers

`data_tools` writes corpora. docs/architecture.md ("Tour: from an audio file to
a padded batch") has the way of a recording.
"""

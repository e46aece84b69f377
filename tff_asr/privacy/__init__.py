"""Differential privacy: clips, noise, and what rounds cost.

    a client's update
      |  queries.PerLayerClipSumQuery.clip                 clips it to C
    the sum of clipped updates, of integers
      |  queries.PerLayerClipSumQuery.get_noised_result    adds the noise, which
      |                                                    noise.gaussian draws
    the noised sum, and the event of the round
      |  accounting.epsilon       from rounds to epsilon
      |  ledger                   the charged rounds of a run, on disk
      |  privacy_report           what a run claims

`aggregators.dp_mean` makes a TFF aggregator of a query. Other noise:
`correlated_noise`, where later rounds cancel a part of it; `distributed`, where
each client adds a share of it; your own, docs/extending.md ("Noise").
"""

"""Means of client updates: `dp_mean` has a guarantee, any other has none.

`privacy.queries` clips the updates and adds the noise; `dp_mean` makes a TFF
aggregator of that, and `aggregation` lets a run use any other aggregator.
"""

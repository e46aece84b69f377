"""Encoders of public models: readers of their files.

`sources.load` takes a name or a folder and returns a
`public_model.PublicModel`: an encoder of `tff_asr/models`, its weights, and
where they are from.
"""

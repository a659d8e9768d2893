"""Test error against seconds of training, everybody at the same epsilon: what people get for their time.

One small file per library, each with ``train(task, recipe, seed, clock)``. Settings are chosen on validation records by
`choose`, noise is certified by `recipes`, and `race` plays everybody in turn.
"""

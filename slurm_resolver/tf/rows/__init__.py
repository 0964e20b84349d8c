"""Which rows of a batch each tensor of a traced graph belongs to.

Begin with `values`, which says what can be known of a tensor. `rules` derive it for the result of
an operation from its inputs, and `analysis` applies them to a graph. Nothing here knows Keras.
"""

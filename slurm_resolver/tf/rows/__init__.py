"""Which rows of a batch each tensor of a traced graph belongs to.

Begin with `values`, which says what can be known of a tensor. `rules` derive it for the result of
an operation from its inputs; what TensorFlow computes itself is in `computed`. `operations` groups
TensorFlow's operations, and `analysis` applies the rules to a graph. Nothing here knows Keras.

"Proven" holds for any batch: where no rule is certain, a value is UNKNOWN, with the reason.
"""

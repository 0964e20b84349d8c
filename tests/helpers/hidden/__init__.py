"""A folder for PYTHONPATH that hides packages from the programs under test.

Keras 3 imports scikit-learn and matplotlib if they are installed, which takes half as long as
importing TensorFlow. Only the examples need them; the other programs start about 100 times.
"""

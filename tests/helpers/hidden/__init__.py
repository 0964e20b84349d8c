"""A folder for PYTHONPATH: programs under test do not see what few of them need.

Keras 3 imports scikit-learn and matplotlib where they are installed, which takes as long as half
of TensorFlow.  The examples need them, and the other programs start some hundred times.
"""

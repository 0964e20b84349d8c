"""Before TensorFlow starts: are all tasks there, do they agree, could training start?"""

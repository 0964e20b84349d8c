"""Checks before TensorFlow starts: have all tasks come, do they agree, can training start?"""

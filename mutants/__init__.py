"""Small errors put into the engine of happens-before, the device and the replay: do the tests notice each?"""

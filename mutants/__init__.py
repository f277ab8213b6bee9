"""Small errors put into the engine of happens-before and the device, one at a time: do the tests notice each?"""

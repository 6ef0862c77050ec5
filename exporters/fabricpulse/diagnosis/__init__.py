"""Which component of the fabric explains the evidence of many hosts: a floor, used by the mesh exporter (reports) and
by the coordinator (diagnosis).
"""

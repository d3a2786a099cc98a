"""Runbook and report rendering."""

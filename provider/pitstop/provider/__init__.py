"""pitstop for Apache Airflow: the same sequence, each verb a task. Imports nothing here."""

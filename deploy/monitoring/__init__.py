"""What a platform team loads beside the service: Prometheus rules, Grafana dashboards, and the pages about them.

All of it is made from `workers.contract.metric_names` by `make monitoring` and committed; a test makes it anew.
"""

"""A later run against a baseline, or one configuration against another: slower, or only worse weather?

`rounds` measures a workload in short rounds beside what the machine gives in the same moments, `adjusted` compares such
rounds, `trial` goes on until every condition is decided, `baselines` keeps them, `report` says it in Markdown.
"""

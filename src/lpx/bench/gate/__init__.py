"""A later run against a baseline, or one configuration against another: slower, or only worse weather?

`sessions` measures a workload in short pieces beside what the machine gives in the same moments, `adjusted` compares
such pieces, for every `response` to the weather that they may have, `trial` goes on until every condition is decided,
`report` says it in Markdown.
"""

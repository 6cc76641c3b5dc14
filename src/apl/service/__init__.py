"""HTTP around the classifier, and a page to teach it on (`apl serve`, extra `apl-memory[service]`).

settings.py       settings and every limit
server.py         granian: heads, trailers, silent connections; stopping without losing anything
guard.py          what a request passes first: host, site, token, rate, size and time of its body
tokens.py         bearer tokens, their scopes, and links for guests
app.py            puts the parts together; errors as answers, by refusal.py
service.py        a running service and its named memories
served_memory.py  one memory: an `OnlineClassifier`, and requests in batches; live.py: its changes as a stream
routes.py         the paths; parameters.py: what they take; bodies.py: requests and the examples in them; answers.py: answers
curve.py          how the examples went; telemetry.py: metrics and logs
page/             the page, which loads nothing from elsewhere
"""

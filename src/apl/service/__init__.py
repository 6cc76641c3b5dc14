"""HTTP around the classifier, and a page to teach it on (`apl serve`, extra `apl-memory[service]`).

settings.py       settings and every limit
server.py         granian: heads, trailers, silent connections; stopping without losing anything
guard.py          what a request passes first: host, site, token, rate.py, size and time of its body
tokens.py         bearer tokens and their scopes; sharing.py: a link and a QR code for guests
app.py            puts the parts together; service.py: what routes need of them
bodies.py         request bodies; answers.py: answers; refusal.py: errors
routes.py         memories and rows; verbs.py: ask, explain, choose, teach; live.py: event streams
examples.py       bodies to examples
memories.py       the named memories
served_memory.py  one memory: an `OnlineClassifier`, and requests in batches; jobs.py: requests that wait
curve.py          how the examples went; telemetry.py: metrics and logs
page/             the page, which loads nothing from elsewhere
"""

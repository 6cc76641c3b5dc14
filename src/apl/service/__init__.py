"""HTTP around the classifier, and a page where anybody can teach it by drawing (`apl serve`, extra `apl-memory[service]`).

app.py            puts the parts together
settings.py       what can be set, and every limit
connections.py    heads, connections and unread answers, bounded
guard.py          what a request passes before it is read: host, origin, rate, token, size
tokens.py         bearer tokens and what each may do in which memory
sharing.py        a link and a QR code for others on the local network
routes.py         the paths under /v1; openapi.py: how they are described
requests.py       bodies, as JSON and as multipart, to examples; pictures.py: bytes or arrays to sheets
encoding.py       requests that arrive together go through the encoder together
memories.py       the named memories of a home
memory_worker.py  one memory: questions in batches, lessons in turn, one transaction for those that wait together
corrections.py    forgetting, bringing back, renaming
curve.py          how the lessons went; idempotency.py: requests that come twice
views.py          looking into a memory; bundle.py: a memory as one file
responses.py      what is answered
episodes.py       an online episode on invented characters, as a stream of events
telemetry.py      metrics and logs
state.py          what the routes share
server.py         uvicorn, and stopping without losing anything
page/             the page, which loads nothing from elsewhere
"""

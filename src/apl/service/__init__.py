"""HTTP around the classifier, and a page where anybody can teach it by drawing (`apl serve`, extra `apl-memory[service]`).

app.py        puts the parts together
settings.py   what can be set, and every limit
guard.py      what a request passes before it is read: host, origin, rate, token, size
tokens.py     bearer tokens and what each may do in which memory
requests.py   bodies, as JSON and as multipart, to examples
pictures.py   bytes or arrays to sheets, without trusting them
encoding.py   requests that arrive together go through the encoder together
memory_worker.py  one memory: questions in batches, lessons in turn, one transaction for those that wait together
memories.py   the named memories of a home
bundle.py     a memory as one file, out and in
history.py    what is kept beside the rows: how lessons went, and which requests were answered already
views.py      looking into a memory
responses.py  what is answered
openapi.py    how the paths are described
routes.py     the paths under /v1
state.py      what they share
episodes.py   an online episode on invented characters, as a stream of events
telemetry.py  metrics and logs
server.py     uvicorn, and stopping without losing anything
page/         the page: three files, nothing from elsewhere
"""

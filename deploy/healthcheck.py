"""Exit with 0 if the server of this container is alive, at the address of its settings."""

import ssl
from urllib.request import urlopen

from vllama import config

settings = config.load({}, config.environ())
# its certificate names it as clients know it, not as 127.0.0.1
trusting = ssl._create_unverified_context()
urlopen(
    f"{settings.url}/livez",
    timeout=5,
    context=trusting if settings.url.startswith("https") else None,
)

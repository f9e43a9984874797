"""The description of a gateway's acts is valid OpenAPI 3.1, and describes each tool of MCP.

openapi.py URL CA, where URL is that of the description.
"""

import json
import ssl
import sys
import urllib.request

from openapi_spec_validator import OpenAPIV31SpecValidator


def main():
    url, ca = sys.argv[1:]
    with urllib.request.urlopen(url, context=ssl.create_default_context(cafile=ca)) as answer:
        document = json.load(answer)
    OpenAPIV31SpecValidator(document).validate()
    assert "/api/v1/acts/delegate" in document["paths"], list(document["paths"])
    print(f"openapi, {document['openapi']}: {len(document['paths'])} acts")


main()

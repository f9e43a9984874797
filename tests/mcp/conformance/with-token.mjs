// Passes each request on to a gateway, and adds the bearer token, which the conformance suite cannot send.
//
// with-token.mjs URL CA, with the token in BATON_TOKEN. Prints its own port.

import { readFileSync } from "node:fs";
import http from "node:http";
import https from "node:https";

const [gateway, ca] = [new URL(process.argv[2]), readFileSync(process.argv[3])];
const server = http.createServer((request, response) => {
    // The host and the origin stay those of the suite: the gateway checks them.
    const headers = { ...request.headers, authorization: `Bearer ${process.env.BATON_TOKEN}` };
    const target = { host: gateway.hostname, port: gateway.port, path: request.url, method: request.method, headers };
    const passed = https.request({ ...target, ca, servername: "localhost" }, (answer) => {
        response.writeHead(answer.statusCode, answer.headers);
        answer.pipe(response);
    });
    passed.on("error", () => response.destroy());
    response.on("close", () => passed.destroy());
    request.pipe(passed);
});
server.listen(0, "127.0.0.1", () => console.log(server.address().port));

import { connect, isIP } from "node:net";
import { Duplex } from "node:stream";
import { connect as connectTls, type ConnectionOptions, type TLSSocket } from "node:tls";

const HANDSHAKE_MS = 10_000;

/**
 * Opens a TLS connection for HTTP/2 that ends when its TCP connection does.
 *
 * By default Node lets TLS write directly to the TCP handle, and does not report a failed write there, for example after the
 * peer has reset the connection and before that was read. HTTP/2 then waits forever for its next write, and reads nothing while
 * a write waits. Therefore TLS gets a stream here instead of the handle: a TCP socket that is written to as a stream closes
 * when a write fails.
 */
export function secureSocket({ hostname, port }: URL, options: ConnectionOptions): TLSSocket {
  const host = hostname.replace(/^\[(.*)\]$/, "$1"); // an IPv6 address
  const name = isIP(host) === 0 ? { servername: host } : {};
  const tcp = connect({ host, port: Number(port || 443), noDelay: true });
  const socket = Duplex.from({ readable: tcp, writable: tcp });
  const secure = connectTls({ ...options, ...name, socket, host, ALPNProtocols: ["h2"] });
  // Node waits forever for a broker that accepts the connection and then is silent.
  const timer = setTimeout(() => {
    secure.destroy(new Error("the broker does not answer the TLS handshake"));
  }, HANDSHAKE_MS);
  const isDone = (): void => {
    clearTimeout(timer);
  };
  secure.once("secureConnect", isDone);
  secure.once("close", isDone);
  tcp.once("close", () => {
    secure.destroy();
  });
  return secure;
}

/** ed25519 keys and their files: PKCS#8 PEM, the format of `baton keygen` and `openssl genpkey -algorithm ed25519`. */
import { createPrivateKey, createPublicKey, generateKeyPairSync, type KeyObject } from "node:crypto";
import { readFile, writeFile } from "node:fs/promises";

/** Returns a new key from the operating system's random number generator. */
export function generateKey(): KeyObject {
  return generateKeyPairSync("ed25519").privateKey;
}

/** Reads a key file. Throws if it cannot be read, or is not an ed25519 private key in PEM. */
export async function loadKey(path: string): Promise<KeyObject> {
  const key = createPrivateKey(await readFile(path));
  if (key.asymmetricKeyType !== "ed25519") throw new TypeError(`${path} is not an ed25519 private key`);
  return key;
}

/** Writes a new key file, readable only by its owner. Does not overwrite a file: throws with `code` EEXIST. */
export async function saveKey(path: string, key: KeyObject): Promise<void> {
  await writeFile(path, key.export({ type: "pkcs8", format: "pem" }), { mode: 0o600, flag: "wx" });
}

/** Returns the public half, 32 bytes, as in an AgentCard. */
export function publicBytes(key: KeyObject): Uint8Array {
  const { x } = createPublicKey(key).export({ format: "jwk" });
  return new Uint8Array(Buffer.from(x ?? "", "base64url"));
}

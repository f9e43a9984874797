package dev.baton;

import java.io.IOException;
import java.math.BigInteger;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.PosixFilePermissions;
import java.security.GeneralSecurityException;
import java.security.KeyFactory;
import java.security.KeyPair;
import java.security.KeyPairGenerator;
import java.security.PrivateKey;
import java.security.PublicKey;
import java.security.Signature;
import java.security.interfaces.EdECPrivateKey;
import java.security.spec.EdECPoint;
import java.security.spec.EdECPublicKeySpec;
import java.security.spec.NamedParameterSpec;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.Arrays;
import java.util.Base64;
import java.util.HexFormat;
import java.util.Set;

/**
 * ed25519 keys and their files: PKCS#8 PEM, the format of {@code baton keygen} and
 * {@code openssl genpkey -algorithm ed25519}. The JDK does the arithmetic; this class adds the checks of strict
 * verification.
 */
public final class Keys {
    private static final String ALGORITHM = "Ed25519";
    private static final int KEY_BYTES = 32;
    private static final int SIGNATURE_BYTES = 64;
    private static final BigInteger P = BigInteger.ONE.shiftLeft(255).subtract(BigInteger.valueOf(19));
    private static final BigInteger ORDER =
            BigInteger.ONE.shiftLeft(252).add(new BigInteger("27742317777372353535851937790883648493"));
    // The y of the 8 points of small order: the identity, orders 2 and 4, and the two of order 8.
    private static final BigInteger Y_8 =
            new BigInteger("2707385501144840649318225287225658788936804267575313519463743609750303402022");
    private static final Set<BigInteger> SMALL_ORDER_Y =
            Set.of(BigInteger.ONE, P.subtract(BigInteger.ONE), BigInteger.ZERO, Y_8, P.subtract(Y_8));
    // The PKCS#8 encoding of an ed25519 key up to its 32 bytes.
    private static final byte[] PKCS8_PREFIX = HexFormat.of().parseHex("302e020100300506032b657004220420");

    private Keys() {}

    /** Returns a new key from the operating system's random number generator. */
    public static KeyPair generate() {
        try {
            KeyPair pair = KeyPairGenerator.getInstance(ALGORITHM).generateKeyPair();
            return ofSeed(seed(pair.getPrivate()));
        } catch (GeneralSecurityException e) {
            throw new IllegalStateException("this JDK has no ed25519", e);
        }
    }

    /** Reads a key file. Throws {@link IOException} if it cannot be read, or is not an ed25519 key in PKCS#8 PEM. */
    public static KeyPair load(Path file) throws IOException {
        String text = Files.readString(file);
        String begin = "-----BEGIN PRIVATE KEY-----";
        int from = text.indexOf(begin);
        int to = text.indexOf("-----END PRIVATE KEY-----");
        if (from < 0 || to < from) {
            throw new IOException(file + " is not a private key in PKCS#8 PEM");
        }
        try {
            byte[] encoded = Base64.getMimeDecoder().decode(text.substring(from + begin.length(), to));
            PrivateKey key = KeyFactory.getInstance(ALGORITHM).generatePrivate(new PKCS8EncodedKeySpec(encoded));
            return ofSeed(seed(key));
        } catch (GeneralSecurityException | IllegalArgumentException e) {
            throw new IOException(file + " is not an ed25519 private key", e);
        }
    }

    /** Writes a new key file, readable only by its owner. Does not overwrite a file. */
    public static void save(Path file, KeyPair key) throws IOException {
        byte[] encoded = concat(PKCS8_PREFIX, seed(key.getPrivate()));
        String text = "-----BEGIN PRIVATE KEY-----\n" + Base64.getEncoder().encodeToString(encoded)
                + "\n-----END PRIVATE KEY-----\n";
        boolean isPosix = file.getFileSystem().supportedFileAttributeViews().contains("posix");
        if (isPosix) {
            var ownerOnly = PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rw-------"));
            Files.createFile(file, ownerOnly);
            Files.writeString(file, text, StandardOpenOption.WRITE);
        } else {
            Files.writeString(file, text, StandardOpenOption.CREATE_NEW);
        }
    }

    /** Returns the key of a 32-byte seed. */
    public static KeyPair ofSeed(byte[] seed) {
        if (seed.length != KEY_BYTES) {
            throw new IllegalArgumentException("a seed has 32 bytes");
        }
        try {
            PKCS8EncodedKeySpec encoded = new PKCS8EncodedKeySpec(concat(PKCS8_PREFIX, seed));
            PrivateKey key = KeyFactory.getInstance(ALGORITHM).generatePrivate(encoded);
            // The JDK computes a public key only when it generates a pair, and generates the pair from the given random
            // numbers.
            KeyPairGenerator generator = KeyPairGenerator.getInstance(ALGORITHM);
            generator.initialize(NamedParameterSpec.ED25519, new SeedOnly(seed));
            PublicKey publicKey = generator.generateKeyPair().getPublic();
            return new KeyPair(publicKey, key);
        } catch (GeneralSecurityException e) {
            throw new IllegalStateException("this JDK has no ed25519", e);
        }
    }

    /** Returns the public half, 32 bytes, as in an agent's card. */
    public static byte[] publicBytes(KeyPair key) {
        byte[] encoded = key.getPublic().getEncoded();
        return Arrays.copyOfRange(encoded, encoded.length - KEY_BYTES, encoded.length);
    }

    /** Whether the key encodes a point of small order, canonically or not. Signatures by this key can be forged. */
    public static boolean isWeak(byte[] publicKey) {
        return publicKey.length == KEY_BYTES && SMALL_ORDER_Y.contains(y(publicKey).mod(P));
    }

    static byte[] sign(PrivateKey key, byte[] message) {
        try {
            Signature signature = Signature.getInstance(ALGORITHM);
            signature.initSign(key);
            signature.update(message);
            return signature.sign();
        } catch (GeneralSecurityException e) {
            throw new IllegalArgumentException("it is not an ed25519 key", e);
        }
    }

    /** Verifies a signature strictly: canonical encodings only, no small-order key, no small-order R. */
    static boolean verifies(byte[] publicKey, byte[] message, byte[] signature) {
        if (publicKey.length != KEY_BYTES || signature.length != SIGNATURE_BYTES) {
            return false;
        }
        byte[] r = Arrays.copyOf(signature, KEY_BYTES);
        byte[] s = Arrays.copyOfRange(signature, KEY_BYTES, SIGNATURE_BYTES);
        if (!isCanonical(publicKey) || !isCanonical(r) || isWeak(publicKey) || isWeak(r)) {
            return false;
        }
        if (littleEndian(s).compareTo(ORDER) >= 0) {
            return false;
        }
        try {
            EdECPoint point = new EdECPoint((publicKey[KEY_BYTES - 1] & 0x80) != 0, y(publicKey));
            EdECPublicKeySpec spec = new EdECPublicKeySpec(NamedParameterSpec.ED25519, point);
            Signature verifier = Signature.getInstance(ALGORITHM);
            verifier.initVerify(KeyFactory.getInstance(ALGORITHM).generatePublic(spec));
            verifier.update(message);
            return verifier.verify(signature);
        } catch (GeneralSecurityException e) {
            return false;
        }
    }

    private static boolean isCanonical(byte[] point) {
        return y(point).compareTo(P) < 0;
    }

    private static BigInteger y(byte[] point) {
        byte[] copy = point.clone();
        copy[KEY_BYTES - 1] &= 0x7f;
        return littleEndian(copy);
    }

    private static BigInteger littleEndian(byte[] bytes) {
        byte[] reversed = new byte[bytes.length];
        for (int i = 0; i < bytes.length; i++) {
            reversed[i] = bytes[bytes.length - 1 - i];
        }
        return new BigInteger(1, reversed);
    }

    private static byte[] seed(PrivateKey key) {
        if (key instanceof EdECPrivateKey ed && ed.getBytes().isPresent()) {
            return ed.getBytes().get();
        }
        throw new IllegalArgumentException("it is not an ed25519 private key");
    }

    private static byte[] concat(byte[] first, byte[] second) {
        byte[] both = Arrays.copyOf(first, first.length + second.length);
        System.arraycopy(second, 0, both, first.length, second.length);
        return both;
    }

    /** Returns the seed in place of random numbers. */
    private static final class SeedOnly extends java.security.SecureRandom {
        private static final long serialVersionUID = 1;
        private final transient byte[] seed;

        SeedOnly(byte[] seed) {
            this.seed = seed.clone();
        }

        @Override
        public void nextBytes(byte[] bytes) {
            System.arraycopy(seed, 0, bytes, 0, bytes.length);
        }
    }
}

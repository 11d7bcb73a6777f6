"""WebRTC peers: one caller's audio, events and pictures over ICE, DTLS and SRTP."""

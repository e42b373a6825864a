package rpc

import "encoding/binary"

// What of HTTP/2 the scanner knows: RFC 9113, sections 4.1 and 6.
const (
	prefaceLength     = 24
	frameHeaderLength = 9
	// maxFrame is how many bytes of payload the server allows. grpc ends a connection at the header of a longer frame.
	maxFrame = 16 << 10

	dataFrameType         = 0x0
	headersFrameType      = 0x1
	resetFrameType        = 0x3
	continuationFrameType = 0x9

	endStreamFlag  = 0x1
	endHeadersFlag = 0x4
	paddedFlag     = 0x8

	// noStream is a stream that no client can open, because those of clients are odd. grpc drops its data, and gives the
	// window of the connection back.
	noStream = 2
)

// frameHandler hears of the frames of a client.
type frameHandler interface {
	// openStream tells of the end of the header of a new stream.
	openStream(id uint32, ends bool)
	// takeData tells of data without its padding, which may be changed, and whether it is the last of its stream. It reports
	// whether grpc shall have it.
	takeData(id uint32, data []byte, ends bool) (pass bool)
	// endStream tells that a client sends no more data on a stream.
	endStream(id uint32)
	// dropStream tells that a client has given a stream up.
	dropStream(id uint32)
}

// frameScanner goes through the frames that a client sends. It refuses nothing: grpc does, where the bytes are no HTTP/2.
type frameScanner struct {
	handler frameHandler
	begun   bool   // the preface is behind
	broken  bool   // grpc reads no further
	newest  uint32 // stream
	opening uint32 // stream whose header is under way, 0 for none
	ends    bool   // that header ends the stream
}

// next goes through the preface or frame at the start of some bytes. It returns its length, 0 if it is not complete, and
// whether it is the end of the header of a new stream.
func (s *frameScanner) next(p []byte) (length int, opened bool) {
	switch {
	case s.broken:
		return len(p), false
	case !s.begun:
		if s.begun = len(p) >= prefaceLength; s.begun {
			length = prefaceLength
		}
		return length, false
	case len(p) < frameHeaderLength:
		return 0, false
	}
	payload := payloadLength(p)
	if payload > maxFrame {
		s.broken = true
		return len(p), false
	}
	if length = frameHeaderLength + payload; len(p) < length {
		return 0, false
	}
	return length, s.takeFrame(p[:length])
}

// takeFrame reports whether a frame is the end of the header of a new stream.
func (s *frameScanner) takeFrame(frame []byte) (opened bool) {
	flags, stream := frame[4], streamOf(frame)
	switch kind := frame[3]; kind {
	case headersFrameType, continuationFrameType:
		if kind == headersFrameType {
			if stream > s.newest {
				s.newest, s.opening, s.ends = stream, stream, flags&endStreamFlag != 0
			} else if flags&endStreamFlag != 0 { // trailers
				s.handler.endStream(stream)
			}
		}
		if s.opening != 0 && flags&endHeadersFlag != 0 {
			s.handler.openStream(s.opening, s.ends)
			s.opening = 0
			return true
		}
	case dataFrameType:
		data, valid := withoutPadding(frame[frameHeaderLength:], flags)
		if valid && stream != 0 && !s.handler.takeData(stream, data, flags&endStreamFlag != 0) {
			binary.BigEndian.PutUint32(frame[5:], noStream)
		}
	case resetFrameType:
		s.handler.dropStream(stream)
	}
	return false
}

// withoutPadding returns the data of a frame. grpc ends a connection for a frame that is not valid.
func withoutPadding(payload []byte, flags byte) (data []byte, valid bool) {
	if flags&paddedFlag == 0 {
		return payload, true
	}
	if len(payload) == 0 || int(payload[0]) >= len(payload) {
		return nil, false
	}
	return payload[1 : len(payload)-int(payload[0])], true
}

func payloadLength(frame []byte) int { return int(frame[0])<<16 | int(frame[1])<<8 | int(frame[2]) }

func streamOf(frame []byte) uint32 { return binary.BigEndian.Uint32(frame[5:]) &^ (1 << 31) }

// endsStream reports whether frames at the start of some bytes end the data of a stream.
func endsStream(p []byte, stream uint32) bool {
	for len(p) >= frameHeaderLength {
		length := frameHeaderLength + payloadLength(p)
		if len(p) < length {
			return false
		}
		if p[3] == dataFrameType && p[4]&endStreamFlag != 0 && streamOf(p) == stream {
			return true
		}
		p = p[length:]
	}
	return false
}

// endScanner finds the ends of streams in the frames that a server sends.
type endScanner struct {
	header [frameHeaderLength]byte
	have   int // how many bytes of the header have come
	left   int // how many bytes of the payload behind it have not come
}

// next goes through some bytes, wherever they are cut, until the end of a stream. It returns the stream, 0 if none ends, and the
// bytes behind it.
func (s *endScanner) next(p []byte) (ended uint32, rest []byte) {
	for len(p) > 0 {
		if s.left > 0 {
			n := min(s.left, len(p))
			s.left -= n
			p = p[n:]
			continue
		}
		n := copy(s.header[s.have:], p)
		s.have += n
		p = p[n:]
		if s.have < frameHeaderLength {
			break
		}
		s.have, s.left = 0, payloadLength(s.header[:])
		switch kind, flags := s.header[3], s.header[4]; {
		case kind == resetFrameType, (kind == headersFrameType || kind == dataFrameType) && flags&endStreamFlag != 0:
			return streamOf(s.header[:]), p
		}
	}
	return 0, nil
}

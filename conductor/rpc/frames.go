package rpc

import "encoding/binary"

// What of HTTP/2 the scanner knows: RFC 9113, sections 4.1 and 6.
const (
	prefaceLength     = 24
	frameHeaderLength = 9

	dataFrameType         = 0x0
	headersFrameType      = 0x1
	resetFrameType        = 0x3
	continuationFrameType = 0x9
	noFrameType           = 0xff

	endStreamFlag  = 0x1
	endHeadersFlag = 0x4
	paddedFlag     = 0x8
)

// frameHandler hears of the frames of a client.
type frameHandler interface {
	// openStream tells of the end of the header of a new stream.
	openStream(id uint32, ends bool)
	// beginData tells of a frame of data, takeData of a stretch of it, which may be changed. Padding is left out.
	beginData(id uint32)
	takeData(stretch []byte)
	// endStream tells that a client sends no more data on a stream.
	endStream(id uint32)
	// resetStream tells that a client has given a stream up.
	resetStream(id uint32)
}

// frameScanner finds the frames in the bytes that a client sends, wherever the reads cut them. It judges nothing: what is
// no HTTP/2 is for the server behind it to refuse.
type frameScanner struct {
	handler frameHandler

	header [frameHeaderLength]byte
	have   int // bytes of it
	// The frame whose payload is under way.
	kind, flags byte
	stream      uint32
	left        int // bytes of payload
	padded      bool
	padding     int // bytes at the end of the payload

	newest  uint32 // stream
	opening uint32 // stream whose header is under way, 0 for none
	ends    bool   // that header ends the stream
}

// endsStream reports whether frames at the start of some bytes end the data of a stream.
func endsStream(p []byte, stream uint32) bool {
	for len(p) >= frameHeaderLength {
		length := int(p[0])<<16 | int(p[1])<<8 | int(p[2])
		if len(p) < frameHeaderLength+length {
			return false
		}
		if p[3] == dataFrameType && p[4]&endStreamFlag != 0 && binary.BigEndian.Uint32(p[5:])&^(1<<31) == stream {
			return true
		}
		p = p[frameHeaderLength+length:]
	}
	return false
}

// newFrameScanner returns a scanner of a connection from its first byte.
func newFrameScanner(h frameHandler) frameScanner {
	return frameScanner{handler: h, kind: noFrameType, left: prefaceLength}
}

// scan goes through bytes up to the end of the first header of a new stream, and returns how many these are.
func (s *frameScanner) scan(p []byte) (n int) {
	for n < len(p) {
		if s.left == 0 {
			took := copy(s.header[s.have:], p[n:])
			s.have += took
			n += took
			if s.have < frameHeaderLength {
				break
			}
			s.beginFrame()
		} else {
			stretch := p[n:min(len(p), n+s.left)]
			if s.kind == dataFrameType {
				s.scanData(stretch)
			}
			s.left -= len(stretch)
			n += len(stretch)
		}
		if s.left == 0 && s.endFrame() {
			break
		}
	}
	return n
}

// beginFrame reads the header of a frame.
func (s *frameScanner) beginFrame() {
	s.have = 0
	s.left = int(s.header[0])<<16 | int(s.header[1])<<8 | int(s.header[2])
	s.kind, s.flags = s.header[3], s.header[4]
	s.stream = binary.BigEndian.Uint32(s.header[5:]) &^ (1 << 31)
	switch s.kind {
	case headersFrameType:
		if s.stream > s.newest { // else these are trailers
			s.newest, s.opening, s.ends = s.stream, s.stream, s.flags&endStreamFlag != 0
		}
	case dataFrameType:
		s.padded, s.padding = s.flags&paddedFlag != 0, 0
		s.handler.beginData(s.stream)
	}
}

// scanData passes a stretch of a payload on, without its padding. s.left counts the stretch still.
func (s *frameScanner) scanData(stretch []byte) {
	left := s.left
	if s.padded {
		s.padded, s.padding = false, int(stretch[0])
		stretch, left = stretch[1:], left-1
	}
	if data := min(len(stretch), left-s.padding); data > 0 {
		s.handler.takeData(stretch[:data])
	}
}

// endFrame reports whether the frame that has ended is the end of the header of a new stream.
func (s *frameScanner) endFrame() bool {
	kind := s.kind
	s.kind = noFrameType
	switch kind {
	case headersFrameType, continuationFrameType:
		if s.flags&endHeadersFlag == 0 {
			return false
		}
		if s.opening != 0 {
			s.handler.openStream(s.opening, s.ends)
			s.opening = 0
			return true
		}
		if kind == headersFrameType && s.flags&endStreamFlag != 0 {
			s.handler.endStream(s.stream)
		}
	case dataFrameType:
		if s.flags&endStreamFlag != 0 {
			s.handler.endStream(s.stream)
		}
	case resetFrameType:
		s.handler.resetStream(s.stream)
	}
	return false
}

package dynamo

import (
	"net/http"
	"slices"

	"github.com/gin-gonic/gin"
)

// peerURL reads the body that names a peer. Any text will do.
func peerURL(r *exchange) (url string, read bool) {
	read = r.decode("PeerRequest", required(stringMember("url", &url)))
	return url, read
}

// registerPeer adds a peer to the list, once: POST /register_peer.
func (d *Dialect) registerPeer(r *exchange) {
	url, read := peerURL(r)
	if !read {
		return
	}
	d.mu.Lock()
	if !slices.Contains(d.peers, url) {
		d.peers = append(d.peers, url)
	}
	d.mu.Unlock()
	ok(r.Context, http.StatusCreated)
}

// deregisterPeer takes a peer off the list: POST /deregister_peer.
func (d *Dialect) deregisterPeer(r *exchange) {
	url, read := peerURL(r)
	if !read {
		return
	}
	d.mu.Lock()
	i := slices.Index(d.peers, url)
	if i >= 0 {
		d.peers = slices.Delete(d.peers, i, i+1)
	}
	d.mu.Unlock()
	if i < 0 {
		refuse(r.Context, http.StatusNotFound, "peer not found")
		return
	}
	ok(r.Context, http.StatusOK)
}

// listPeers answers with the list, in the order of registration: GET /peers. With
// ?detail=1, which is ours, it also says how the recovery from them went.
func (d *Dialect) listPeers(g *gin.Context) {
	detail, readable := detailed(g)
	if !readable {
		return
	}
	d.mu.Lock()
	peers := append([]string{}, d.peers...)
	d.mu.Unlock()
	body := encode(peers)
	if detail {
		body = encode(gin.H{"peers": peers, "recovery": d.Recovery()})
	}
	g.Data(http.StatusOK, "application/json", body)
}

// detailed reads the parameter detail; what it cannot be is answered with 400.
func detailed(g *gin.Context) (detail, readable bool) {
	switch g.Query("detail") {
	case "", "0", "false":
		return false, true
	case "1", "true":
		return true, true
	}
	plain(g, http.StatusBadRequest, "Failed to deserialize query string: detail: provided string was not `true` or `false`")
	return false, false
}

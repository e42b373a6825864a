package hash

import (
	"bytes"
	"encoding/hex"
	"slices"
	"strings"
	"testing"

	"example.com/conductor/internal/must"
)

// signed returns the tokens first..last.
func signed(first, last int32) []int32 {
	var out []int32
	for t := first; t <= last; t++ {
		out = append(out, t)
	}
	return out
}

// unsigned returns tokens as they are kept.
func unsigned(tokens []int32) []uint32 {
	out := make([]uint32, len(tokens))
	for i, t := range tokens {
		out[i] = uint32(t)
	}
	return out
}

// vllm returns settings of StrategyVLLM.
func vllm(algorithm, seed, extras string) Settings {
	return Settings{Strategy: StrategyVLLM, Algorithm: algorithm, PythonHashSeed: seed, IndexProjection: ProjectionLow64, ExtraKeys: extras}
}

// sglang returns settings of SGLang's strategies.
func sglang(strategy string) Settings {
	return Settings{Strategy: strategy, Algorithm: AlgorithmPages, PythonHashSeed: "0", IndexProjection: ProjectionFirst64}
}

// chainOf returns the chain of a prompt.
func chainOf(t testing.TB, s Settings, lora, salt string, size int, tokens []uint32) *DigestChain {
	t.Helper()
	p, err := NewProfile(s)
	must.Succeed(t, err)
	c, err := p.NewDigestChain(lora, salt)
	must.Succeed(t, err)
	c.Reset(tokens, size)
	return c
}

func TestRootVectors(t *testing.T) {
	f := func(algorithm, seed, want string) {
		t.Helper()
		p, err := NewProfile(vllm(algorithm, seed, ""))
		must.Succeed(t, err)
		if got := p.Settings().RootDigest; got != want {
			t.Errorf("%s of %q: got %s, want %s", algorithm, seed, got, want)
		}
	}
	f("sha256", "0", "1973e23848344dc43a988a9b478663803cfffe1243480253f9a3cf004b14aa7c")
	f("sha256", "00", "67c61e0f70ad5d3fc0eacb59744008ac6f2a8bd2edad43540a743eaf0fb4993c")
	f("sha256", "random", "fa1326fc0ad784c54e10f808051a77f999f7b675b12fba49cbef92b3e1a09cb7")
	f("sha256", "4294967295", "670c2eca46f5f7e11b9dce5c3bd2ff0e9e19567fd45b50c2db5cc0c9aae470d9")
	f("sha256", "vllm-none-hash", "066b1e8987e027138e98701c46128929378935f9b6cd1549105ae6b4f0d71198")
	f("xxhash", "0", "6fb31cc38bba6066183f7f2104b9c051")
	f("xxhash", "00", "e6810c5b798027ca5af1a92e1be6ef11")
	f("xxhash", "random", "c65c9b784048f08f9df9ee060f014076")
	f("xxhash", "4294967295", "5f72b99583547474687016a1e960f962")
	f("sha256_cbor", "0", "4e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e")
	f("sha256_cbor", "00", "8d912e4e62b3cc377b1d1c7a14ef61dffbdaa0990237035c05401c29414c4172")
	f("sha256_cbor", "random", "78d6ac7e28de859e492449dcea03e3807377d69998c5af819fed33a6df490cad")
	f("sha256_cbor", "4294967295", "177f280a5695322a18f16c96a26dc99d9c03f905940103dfe24a9c646fe446a8")
	f("sha256_cbor", "vllm-none-hash", "9bd96a485ad84efdafb72ee48a1d7a69bcead0f8f0433173941b276b9581eef0")
	f("xxhash_cbor", "0", "1ebe36576dcb573f26b99533a20aaeca")
	f("xxhash_cbor", "00", "988a64041c9f9ff99e35e798308cac49")
	f("xxhash_cbor", "random", "32e23dc39776371d9f8b217365649b32")
	f("xxhash_cbor", "4294967295", "b08232e9b307b3d26ccabbeb98de9e95")

	g := func(got []byte, want string) {
		t.Helper()
		if hex.EncodeToString(got) != want {
			t.Errorf("got %x, want %s", got, want)
		}
	}
	pickled := func(seed string) []byte {
		k := pickler{framing: true}
		k.writeProtocol()
		k.writeText(seed)
		return k.finishPickle()
	}
	g(appendCBORText(nil, "0"), "6130")
	g(appendCBORText(nil, "00"), "623030")
	g(pickled("0"), "80059505000000000000008c0130942e")
	g(pickled("00"), "80059506000000000000008c023030942e")
	g(pickled("random"), "8005950a000000000000008c0672616e646f6d942e")
	g(pickled("4294967295"), "8005950e000000000000008c0a34323934393637323935942e")
}

// What vLLM names blocks by. The first rows are those of Mooncake's published
// fixtures; those of the other algorithms, of tagged keys and of long blocks were
// computed by CPython's pickle and hashlib, cbor2 6.2 and python-xxhash 4.1.
func TestVLLMVectors(t *testing.T) {
	f := func(algorithm, seed, extras, lora, salt string, size int, tokens []int32, want ...string) {
		t.Helper()
		c := chainOf(t, vllm(algorithm, seed, extras), lora, salt, size, unsigned(tokens))
		if c.Len() != len(want) {
			t.Fatalf("%d blocks, want %d", c.Len(), len(want))
		}
		for i, w := range want {
			d := c.Digest(i)
			if got := hex.EncodeToString(d[:c.profile.Size()]); got != w {
				t.Errorf("%s, block %d: got %s, want %s", algorithm, i, got, w)
			}
		}
	}
	// spec_unsalted
	f("sha256_cbor", "0", "", "", "", 4, signed(1, 8), "c9d58ba695280d69b243e1e0df813136ca9196b286fb1a021e0b2e028ef071cb",
		"24125b23e68883b5c2141db2959d48433fe6bde2f26bd914efad121d154ab2d6")
	// lora_every_block
	f("sha256_cbor", "0", "", "adapter-A", "", 4, signed(1, 8), "1424c0ec536f82188b592f263601d4e48c0255081c5f1e9225163c6d611a5222",
		"4a2ec941640a8f2470869ec2b3cf6bdd90e2be83b21807b628ac9abe9341eea9")
	// salt_first_block
	f("sha256_cbor", "0", "", "", "tenant-salt", 4, signed(1, 8), "3be45574566e2f3c51c9f254d9627cf113382b627aeaefe8b661d66cfa089359",
		"22dea68f80ff7f40243dfb906a33db02571905c78a3b42153a56de5ad08c661a")
	// lora_then_salt
	f("sha256_cbor", "0", "", "adapter-A", "tenant-salt", 4, signed(1, 8),
		"22977da6c71098507264dbf4161d451c2d98494c5c146717f36787e184b36040",
		"6a3cd7de2626c2d2982eb5bc9d4878a49745c3784bde8a2334ffac47286bb866")
	// signed_integer_boundaries
	f("sha256_cbor", "0", "", "", "", 12, []int32{-2147483648, -257, -256, -25, -24, -1, 0, 23, 24, 255, 256, 2147483647},
		"d4e5cc975a84b5ae7299d36910284bf256ea1eade2689dba6391b08d86e006d7")
	// utf8_length_23
	f("sha256_cbor", "0", "", strings.Repeat("a", 23), "", 4, signed(1, 4),
		"3cc96f507898959352d1d123c849d0ab4b11846c8de3c67123d72e78957adb07")
	// utf8_length_24
	f("sha256_cbor", "0", "", strings.Repeat("a", 24), "", 4, signed(1, 4),
		"553263ebbf33660ecba67f9fcabea06d20cca3a71c79abf6e1894d39c7fa8ff8")
	// utf8_multibyte
	f("sha256_cbor", "0", "", "模型-适配器", "盐值-🚀", 4, signed(1, 4), "69af00b1b180a366c69003a00527c2baf6bbc71880abc3b1d3b60fa2f553cdca")
	// definite_array_length_24
	f("sha256_cbor", "0", "", "", "", 24, signed(0, 23), "792917e681c347b21bebfdd57cabcca6b79c865f83ccd2cfbd9cb56ffed2b088")
	// incomplete_tail
	f("sha256_cbor", "0", "", "", "", 4, signed(1, 6), "c9d58ba695280d69b243e1e0df813136ca9196b286fb1a021e0b2e028ef071cb")
	// no_complete_block
	f("sha256_cbor", "0", "", "", "", 4, signed(1, 3))
	// spec_unsalted
	f("sha256", "0", "", "", "", 4, signed(1, 8), "762b2e7e1520febd3a0aedb7358e8602facf3924440e18538fce057e23bae91d",
		"9e62b5a7ec298f33cb4c7d9e00b659874bb2432d23ad6879ad1746592a2b036b")
	// single_token_tuple
	f("sha256", "0", "", "", "", 1, []int32{7}, "4e7493abc7315520e17ce180ee400439b7dc83e7406fb239462766705eb058c8")
	// two_token_tuple
	f("sha256", "0", "", "", "", 2, []int32{7, 8}, "aa9e79304bb6921235ea2e187b25f9bb43d9044ec232e3d1c07d7e21e51e64ee")
	// three_token_tuple
	f("sha256", "0", "", "", "", 3, signed(7, 9), "6368e68a46c970c8ec2ebab3eb9d2fe7ddc2730165bb64d698aaed2907396794")
	// empty_extras_encode_as_none
	f("sha256", "0", "", "", "", 4, []int32{10, 20, 30, 40}, "569de0636f6064532b63312eab095a4577e72dc55286dbfb43821ec866309e47")
	// signed_integer_boundaries
	f("sha256", "0", "", "", "", 8, []int32{-2147483648, -1, 0, 255, 256, 65535, 65536, 2147483647},
		"6c9e5f944f0a93319b3ba9478115a9447de2f6d4ef1cd1c0b19a7ebd607353e8")
	// utf8_multibyte
	f("sha256", "0", "", "模型-适配器", "盐值-🚀", 4, signed(1, 4), "cc1a2ab147f91a34070bb430e35dbc6ca6261a93b490a2307d0b4b31696a247a")
	// lora_length_255
	f("sha256", "0", "", strings.Repeat("a", 255), "", 4, signed(1, 4), "866b277c9d76457e35bd6a5dd3ec0d5b598faa9e36d108608f6e925149b1524b")
	// lora_length_256
	f("sha256", "0", "", strings.Repeat("a", 256), "", 4, signed(1, 4), "0c934ab8aa543128da871a91a46387ed907ed3ca8b39e5c137da510f80a106df")
	// salt_length_255
	f("sha256", "0", "", "", strings.Repeat("s", 255), 4, signed(1, 4), "167d69abb219f81883e1fc5e554564bab043051f849914feb058487c8bffc398")
	// salt_length_256
	f("sha256", "0", "", "", strings.Repeat("s", 256), 4, signed(1, 4), "0875d6e8c04ec7bb02928dc8f4b9e336aecb8adfae9078a9b6b54fe557b6857d")
	// lora_every_block
	f("sha256", "0", "", "adapter-A", "", 4, signed(1, 8), "5c5d9e04e03de9f2f4a9f38766c4d0fb0e207ccf5d2fb3b272c50117f336ae0c",
		"bde66cc24757972cc88e0fe62079d85934868c2733874ffa1c54ff679604f61a")
	// salt_first_block_only
	f("sha256", "0", "", "", "tenant-salt", 4, signed(1, 8), "373c09c29ab08b91b13bf1a67e0a461990572d476016c064b6ba6b75c163ceb1",
		"141900dd6fe59d22764357a125ecf4d670923bb12ad705a520de0e98c7338d5d")
	// lora_then_salt
	f("sha256", "0", "", "adapter-A", "tenant-salt", 4, signed(1, 8),
		"dacd8a5addba8cf4b89589bedab04999b3676299a455ba3e085cc7777be6b328",
		"55575bd9b63ced6a3dc36c355afbb5f551599533795c26d27d8b5fc836681618")
	// multi_block_chain
	f("sha256", "0", "", "", "", 4, signed(1, 16), "762b2e7e1520febd3a0aedb7358e8602facf3924440e18538fce057e23bae91d",
		"9e62b5a7ec298f33cb4c7d9e00b659874bb2432d23ad6879ad1746592a2b036b",
		"fd503875de30430b3c7e35f7ecca2fe995f2d55487bfef31707e09b175f917a0",
		"ac30858a66380467632841b758acc6cbe95ff9cfd7b9d226aa33de029248adff")
	// incomplete_tail
	f("sha256", "0", "", "", "", 4, signed(1, 6), "762b2e7e1520febd3a0aedb7358e8602facf3924440e18538fce057e23bae91d")
	// no_complete_block
	f("sha256", "0", "", "", "", 4, signed(1, 3))
	// frame_boundary_token_stream
	f("sha256", "0", "", "", "", 22000, slices.Repeat([]int32{256}, 22000),
		"7f245129165bb9ba11747856a9a908740bf7b29c0033da4958281d87b252f469")
	// large_lora_large_payload
	f("sha256", "0", "", strings.Repeat("a", 70000), "", 4, signed(1, 4),
		"f30f906062e861807059e2099b689baf2c9484128a0c2fd40a5fdd1e1032f47f")

	f("sha256", "0", "tagged", "adapter-A", "tenant-salt", 4, signed(1, 8),
		"0d8282017d18d7840cb396fb015e18ac8b854a17c52e1df7e39c24e67d28c0db",
		"f4d8b0d205b0dcc3dae18612904317f89defcbdc70077517dc952929fc75b6c4")
	f("sha256", "0", "tagged", "", "tenant-salt", 4, signed(1, 8), "efc64c9bd8edc3bb19629a84dc22bb4a207a4c52ff3e95b1da5bcf86b9e3f585",
		"2563fbf14070a07569ee1cf46b3a9d7b32703da03498239ed5cc473ee12731bc")
	f("sha256", "0", "tagged", "adapter-A", "", 1, []int32{-24, -25},
		"20edaa56b61d69da63ce64255738ebd3366bb6a10cb188af4f8e551f66737d2a",
		"bed70053f4c21a5fad80a725b6ffeda223e3fd2545820201666185a15151a64b")
	f("sha256", "7", "", strings.Repeat("l", 65535), "", 2, signed(1, 4),
		"91c53c481541f41a095f8f57e4ff83badef469258cca884a5d85e2b4855d3399",
		"fce6b3582a317885530aaa61c262c3012d80d70edc96088419d2dc250bce4c13")
	f("sha256", "7", "", strings.Repeat("l", 65536), strings.Repeat("s", 65536), 2, signed(1, 4),
		"f6a4990b60c82fe4a7935a1a9fa350acde6a3e632dcd1f1fbd95f03e8720a12a",
		"6867486f3bd10ca63692fa37ab2521471f314a5d54e3a0e59d4954c52a4a4360")
	f("sha256", "7", "tagged", strings.Repeat("l", 65600), strings.Repeat("s", 70), 2, signed(1, 4),
		"05b88288f063469af5d9774477c7a7d5bbcfb7a553847d31e1562bf5b26bba79",
		"8fe8e4675459d23197c9cf0215a582b3c891710c3d9603d93c9e95b85ce799d6")
	f("sha256", "7", "", "a", "s", 13097, slices.Repeat([]int32{100000}, 13097),
		"23d83bbeff354908d8d3fb6e7b5ae5064fca371897885319cf0170fa5520921a")
	f("sha256", "7", "", "a", "s", 13098, slices.Repeat([]int32{100000}, 13098),
		"66a4b869d0efe351f1c11e13169d5972227dd2c934630a0519d1c11d365a45f8")
	f("sha256", "7", "", "a", "s", 13099, slices.Repeat([]int32{100000}, 13099),
		"199cc72bbcfbd80a45fe9646687079535220b00757ca6d48177b10ee67981589")
	f("sha256", "7", "", "a", "s", 13100, slices.Repeat([]int32{100000}, 13100),
		"27bff50f2ace7f3fd3136b2d4f57f03824cb9aa6ffe4dea0521b6390b4096362")
	f("sha256", "7", "", "a", "s", 13101, slices.Repeat([]int32{100000}, 13101),
		"6b124b51e1c814b62bdc1bfc4472356f3b9596a1cede6f6812c6ebb0491192df")
	f("sha256", "7", "", "a", "s", 26200, slices.Repeat([]int32{100000}, 26200),
		"032c6bb53f90c68d72556a92f5db44fce729b1db3f3e95e2f1524f8828b4efa1")
	f("xxhash", "0", "", "", "", 4, signed(1, 8), "f3856cedd7e636094750c4546e855397", "0c9832567b17003b126077f57e0bb670")
	f("xxhash", "42", "", "模型", "盐值-🚀", 4, signed(1, 8), "f050dfccd5ea60d12b2ab12b81fca28b", "26203c7b6b1c7fa110e63aef07b7d5b5")
	f("xxhash", "random", "", "", "s", 3, []int32{255, 256, -1, 65535, 65536, 2147483647}, "ccc66794659f14b9dd16592531b3bbca",
		"d4aba683455dda0c35f2897274584bb2")
	f("xxhash", "0", "tagged", "adapter-A", "tenant-salt", 4, signed(1, 8), "b8f3974dda81e02c60fdca43e4ac68ea",
		"18bb21c710965ae6597656caa9a7bf7b")
	f("xxhash", "0", "tagged", "", "tenant-salt", 4, signed(1, 8), "f09e15601ba2800d00db7a16a86cb6db", "daf33647e66db94457b276e9b5d3080f")
	f("xxhash", "0", "tagged", "adapter-A", "", 1, []int32{-24, -25}, "3cc5975718507684ce94e57ecaf73bb2",
		"a7b67b05942c7c1ab0ab18c31b94238d")
	f("xxhash", "7", "", strings.Repeat("l", 65535), "", 2, signed(1, 4), "a87eafac4089c9c1da8669f715a1ff79",
		"805d291adb379e20a53614e1434f701d")
	f("xxhash", "7", "", strings.Repeat("l", 65536), strings.Repeat("s", 65536), 2, signed(1, 4), "ce9f48341d1f5bbb252e09fa2d89543f",
		"733e21f14a5b16d4e12acd43cad71475")
	f("xxhash", "7", "tagged", strings.Repeat("l", 65600), strings.Repeat("s", 70), 2, signed(1, 4), "ce6a696277d91eddb90d64dc8e773a1d",
		"8c273e1963c1a2b24d05808a46c01552")
	f("xxhash", "7", "", "a", "s", 26200, slices.Repeat([]int32{100000}, 26200), "b6e785d2d28b82d013b7c50d481d0c67")
	f("sha256_cbor", "0", "tagged", "adapter-A", "tenant-salt", 4, signed(1, 8),
		"ed72605648d93360eef3e19f34ce5835955b4b5954544b6a935a1c8a839c2aa4",
		"41dfa99e4406a657bb370e7f25970ecbb42d2a518a7397650acfe53b05ba6f86")
	f("sha256_cbor", "0", "tagged", "", "tenant-salt", 4, signed(1, 8),
		"2e2dee9655300660440c02201084092a426d33f1dc6561143eb5e516687b60f0",
		"a2d75d77792b132713c4b9c19aa440984e41d8e5e6c2bd08d57004c0ffa0aaa1")
	f("sha256_cbor", "0", "tagged", "adapter-A", "", 1, []int32{-24, -25},
		"fa6f282ed73cc39df020be84a7d2d7b5e0dff7cd097e625f9a44222f6e948cf9",
		"c2eba85670d6ea87634534f5bee60939e5009eed909e7f1b3ea89e23c91eeaed")
	f("sha256_cbor", "7", "", strings.Repeat("l", 65535), "", 2, signed(1, 4),
		"ac6ff98413d04fd33d471b391235e7332d5db42e3f568f963dc4cd8c45c7300f",
		"0e084994c7043b27abfcf5e64fa079e8279e58070c8621857704ca1fa86f18b9")
	f("sha256_cbor", "7", "", strings.Repeat("l", 65536), strings.Repeat("s", 65536), 2, signed(1, 4),
		"373a52932a1a8d21a3f6be4505ca13aabc46dbebec2646e8706c9270fa38fdf8",
		"6408eb839f6499a1faaf270459629452618136984abff7a2151707c12e2fd194")
	f("sha256_cbor", "7", "tagged", strings.Repeat("l", 65600), strings.Repeat("s", 70), 2, signed(1, 4),
		"5766fdea9777b98523591c83f3beed9ff0f40e60910437b7067e55f84ff6f36c",
		"9733070ddf4652e87f53deda43a07bf7c2f3a958fb4ad93bb9fe2fa516a98e56")
	f("sha256_cbor", "7", "", "a", "s", 26200, slices.Repeat([]int32{100000}, 26200),
		"558dd8473a53696230e2c45c1ef8ad3bb19ee560aa1e0cacd320de8d88e68c7b")
	f("xxhash_cbor", "0", "", "", "", 4, signed(1, 8), "0a8577df5ee3430515a8cc1f6e3ac52e", "d152782cb4d753bde718a811a3b75e23")
	f("xxhash_cbor", "42", "", "模型", "盐值-🚀", 4, signed(1, 8), "1a270fcb667ed60c6c746d1f0d027d25", "68cc2551884624552313836565893d45")
	f("xxhash_cbor", "random", "", "", "s", 3, []int32{255, 256, -1, 65535, 65536, 2147483647}, "cdb579562bd782ef9204142f93d68e06",
		"17c62846eb3006c57eb3a484dc0f6ec6")
	f("xxhash_cbor", "0", "tagged", "adapter-A", "tenant-salt", 4, signed(1, 8), "9c4a1ef4073293caa2363d226f011568",
		"1883ca0818794ac12e1a713d545555c7")
	f("xxhash_cbor", "0", "tagged", "", "tenant-salt", 4, signed(1, 8), "b68aaa76167db509bec1a9c160a7a1a7",
		"420cef8d2064bfba135ec0b0fcd214f3")
	f("xxhash_cbor", "0", "tagged", "adapter-A", "", 1, []int32{-24, -25}, "43e1769b410b424efd053970123da758",
		"0d748916324dac4f5dc9df71650513ce")
	f("xxhash_cbor", "7", "", strings.Repeat("l", 65535), "", 2, signed(1, 4), "d8c03625e2e6bfc5105569b1cb2c51a1",
		"06409a29b1fdd1b83d81ea2ae3f81436")
	f("xxhash_cbor", "7", "", strings.Repeat("l", 65536), strings.Repeat("s", 65536), 2, signed(1, 4),
		"0a58f8ee8741f0ce734be9146687a439", "43fc4b808b75bc9953027c7139fb2394")
	f("xxhash_cbor", "7", "tagged", strings.Repeat("l", 65600), strings.Repeat("s", 70), 2, signed(1, 4),
		"5cb16e2250c10c135b334da688fbf8f2", "43f3440848b5870ff51308721dca0ff4")
	f("xxhash_cbor", "7", "", "a", "s", 26200, slices.Repeat([]int32{100000}, 26200), "83cdad73ab2f4f28d327bf92fa0ddccf")
	f("sha256", "7", "", "", "", 13100, slices.Repeat([]int32{100000}, 13100),
		"981e5f0ae1b577ee3aa1f401f46c86624ccb5bb8044ba4a7f778d9e193055db3")
	f("xxhash", "7", "", "", "", 13100, slices.Repeat([]int32{100000}, 13100), "d2a22e5eecf7f6095f82721e6859119b")
}

// The keys of prompts, as they are listed in decimal.
func TestKeyVectors(t *testing.T) {
	f := func(s Settings, lora, salt string, size int, tokens []int32, want ...uint64) {
		t.Helper()
		c := chainOf(t, s, lora, salt, size, unsigned(tokens))
		var got []uint64
		for i := range c.Len() {
			got = append(got, c.At(i))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s of %d: got %d, want %d", s.Algorithm, tokens, got, want)
		}
	}
	cbor, pickle := vllm(AlgorithmSHA256CBOR, "0", ""), vllm(AlgorithmSHA256, "0", "")
	f(cbor, "", "", 4, signed(1, 8), 2164874634404590027, 17270480062156288726)
	f(cbor, "adapter-A", "", 4, signed(1, 8), 2672389869369184802, 2930887600816385705)
	f(cbor, "", "tenant-salt", 4, signed(1, 8), 13142020951183496025, 4203791783824221722)
	f(cbor, "adapter-A", "tenant-salt", 4, signed(1, 8), 17539136676481425472, 3818960430654273638)
	f(cbor, "", "", 12, []int32{-2147483648, -257, -256, -25, -24, -1, 0, 23, 24, 255, 256, 2147483647}, 7174709803277616855)
	f(cbor, "模型-适配器", "盐值-🚀", 4, signed(1, 4), 15255397980339162570)
	f(cbor, "", "", 24, signed(0, 23), 13662994862156460168)
	f(cbor, strings.Repeat("a", 23), "", 4, signed(1, 4), 2582584006759078663)
	f(cbor, strings.Repeat("a", 24), "", 4, signed(1, 4), 16251605640906706936)
	f(cbor, "", "", 16, signed(1, 48), 3236607068019569386, 2758186210834249151, 5191110061519319221)
	f(vllm(AlgorithmSHA256CBOR, "42", ""), "", "", 4, signed(1, 8), 5988051177307384287, 11214766589215907092)
	f(vllm(AlgorithmSHA256CBOR, DefaultRootSeed, ""), "", "", 4, signed(1, 8), 9561501211280363793, 15292913576410714033)
	f(pickle, "", "", 4, signed(1, 16), 10362225831949560093, 12472515041799373675, 8105927037106591648, 12264390312885530111)
	f(pickle, "", "", 1, []int32{7}, 5055121739557656776)
	f(pickle, "", "", 2, []int32{7, 8}, 13870381111413990638)
	f(pickle, "", "", 3, []int32{7, 8, 9}, 11000865800276502420)
	f(pickle, "adapter-A", "", 4, signed(1, 8), 8270017493112106508, 2041537351469299226)
	f(pickle, "", "tenant-salt", 4, signed(1, 8), 13166954614070955697, 2368346503383321949)
	f(pickle, "adapter-A", "tenant-salt", 4, signed(1, 8), 602575766154556200, 9046429590014662168)
	f(pickle, "", "", 8, []int32{-2147483648, -1, 0, 255, 256, 65535, 65536, 2147483647}, 12797680642958775272)
	f(pickle, "模型-适配器", "盐值-🚀", 4, signed(1, 4), 9010378155078853754)
	f(pickle, strings.Repeat("a", 255), "", 4, signed(1, 4), 10335359072688230987)
	f(pickle, strings.Repeat("a", 256), "", 4, signed(1, 4), 4024618344033355487)
	f(pickle, "", strings.Repeat("s", 255), 4, signed(1, 4), 12706986048387793816)
	f(pickle, "", strings.Repeat("s", 256), 4, signed(1, 4), 13165516932125197693)
	f(pickle, "", "", 22000, slices.Repeat([]int32{256}, 22000), 6352359743055656041)
	f(pickle, strings.Repeat("a", 70000), "", 4, signed(1, 4), 747559184357323903)
	f(pickle, "", "", 16, signed(1, 48), 7536218907325174565, 9048537298590080561, 13531043868806099746)
	f(vllm(AlgorithmSHA256, "42", ""), "", "", 4, signed(1, 8), 649359390096368487, 14757019014570657544)
	f(vllm(AlgorithmSHA256, DefaultRootSeed, ""), "", "", 4, signed(1, 8), 1882140585328457242, 15284023028817948126)

	for _, s := range []Settings{cbor, pickle} {
		f(s, "", "", 4, signed(1, 3))
		f(s, "", "", 4, nil)
		f(s, "", "", 0, signed(1, 8))
		f(s, "", "", -4, signed(1, 8))
	}

	// Events of SGLang carry the same bits signed.
	bits := func(v ...int64) []uint64 {
		var out []uint64
		for _, n := range v {
			out = append(out, uint64(n))
		}
		return out
	}
	pages, bigrams := sglang(StrategySGLang), sglang(StrategySGLangBigram)
	f(pages, "", "", 4, signed(1, 8), bits(-3488128144981237669, 5674439469042975057)...)
	f(pages, "", "", 4, signed(1, 4), 0xcf97adeedb59e05b)
	f(pages, "", "", 2, []int32{1, 2, 7, 8}, bits(3817746824117602890, 863173374788446151)...)
	f(pages, "", "tenant-a", 2, []int32{1, 2, 7, 8}, bits(31502315585564397, 4743673046050733608)...)
	f(pages, "", "salty", 4, signed(1, 4), 0xd98f7292c18ec8dd)
	f(pages, "adapter-A", "tenant-a", 2, []int32{1, 2, 7, 8}, bits(31502315585564397, 4743673046050733608)...)
	f(pages, "", "", 4, signed(1, 7), 0xcf97adeedb59e05b)
	f(pages, "", "", 4, signed(1, 3))
	f(bigrams, "", "", 2, signed(1, 3), bits(-1303529142941650691)...)
	f(bigrams, "", "", 3, []int32{10, 20, 30, 40}, 15710792592378487421)
	f(bigrams, "", "", 4, []int32{10, 20, 30, 40})
	f(bigrams, "", "", 1, []int32{10})
	f(bigrams, "", "", 4, nil)
	f(bigrams, "", "", 0, signed(1, 8))
}

// The exact bytes that are hashed.
func TestWrittenVectors(t *testing.T) {
	f := func(s Settings, lora, salt string, want string) {
		t.Helper()
		c := chainOf(t, s, lora, salt, 4, span(1, 4))
		c.At(0)
		root := hex.EncodeToString(c.root[:])
		if got := strings.Replace(hex.EncodeToString(c.block), root, "<root>", 1); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	cbor, pickle := vllm(AlgorithmSHA256CBOR, "0", ""), vllm(AlgorithmSHA256, "0", "")
	f(cbor, "", "", "835820<root>8401020304f6")
	f(pickle, "", "", "80059532000000000000004320<root>94284b014b024b034b0474944e87942e")
	f(pickle, "adapter-A", "tenant-salt",
		"8005954d000000000000004320<root>94284b014b024b034b0474948c09616461707465722d41948c0b74656e616e742d73616c7494869487942e")

	g := func(lora string, size int, tokens []uint32, want int) {
		t.Helper()
		c := chainOf(t, pickle, lora, "", size, tokens)
		c.At(0)
		if len(c.block) != want {
			t.Errorf("%d bytes, want %d", len(c.block), want)
		}
	}
	g("", 22000, slices.Repeat([]uint32{256}, 22000), 66062)
	g(strings.Repeat("a", 70000), 4, span(1, 4), 70077)
}

// Chaining by the key instead of the digest gives these, which are wrong.
func TestParentIsTheDigest(t *testing.T) {
	f := func(algorithm, wrong string) {
		t.Helper()
		c := chainOf(t, vllm(algorithm, "0", ""), "", "", 4, span(1, 8))
		bad, err := hex.DecodeString(wrong)
		if d := c.Digest(1); err != nil || bytes.Equal(d[:], bad) {
			t.Errorf("%s: chained by key, %v", algorithm, err)
		}
	}
	f(AlgorithmSHA256CBOR, "067bc227e5aa13cb174be22cd7016b7b21b663eddba6241928d7a7d1ffc0aa1e")
	f(AlgorithmSHA256, "22f70d17411c10aa544ecdac1d2df0fc1d7c7ac2d21efe1aebe32028620638c6")
}

// TestLookAheadVectors compares keys with those of CPython's pickle and cbor2, called the
// way vLLM 0.33 calls them.
func TestLookAheadVectors(t *testing.T) {
	f := func(algorithm string, ahead int, lora, salt string, tokens []int32, want ...uint64) {
		t.Helper()
		p, err := NewProfile(vllm(algorithm, "0", ExtraKeysTagged))
		must.Succeed(t, err)
		c, err := p.WithAhead(ahead).NewDigestChain(lora, salt)
		must.Succeed(t, err)
		c.Reset(unsigned(tokens), 4)
		var got []uint64
		for i := range c.Len() {
			got = append(got, c.At(i))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s, look-ahead %d, %d: got %d, want %d", algorithm, ahead, tokens, got, want)
		}
	}
	wide := signed(250, 265)
	f(AlgorithmSHA256, 1, "", "", wide, 16741220435964166707, 16478823191872641298, 14343142771199900697)
	f(AlgorithmSHA256, 2, "", "", wide, 17203267458672263214, 10585231215613995266, 8094572200884898287)
	f(AlgorithmSHA256, 3, "", "", wide, 416524051015336202, 14499428576914421857, 9969624966491520558)
	f(AlgorithmSHA256, 4, "", "", wide, 14715084807809516803, 2671986898738817594, 12113954601563567956)
	f(AlgorithmSHA256, 8, "", "", wide, 6937857383493745609, 14697962185130789142)
	f(AlgorithmSHA256, 1, "", "tenant-salt", signed(1, 9), 10200693553089645741, 7601129073052388192)
	f(AlgorithmSHA256, 3, "adapter-A", "tenant-salt", signed(1, 11), 16811619459232373923, 11772689277126986928)
	f(AlgorithmSHA256CBOR, 1, "", "", wide, 17481955718614077866, 10968277544525297680, 3310918850604932527)
	f(AlgorithmSHA256CBOR, 2, "", "", wide, 10588366551736658061, 7465968778526142165, 4208152691654309515)
	f(AlgorithmSHA256CBOR, 8, "", "", wide, 15043154933944243864, 17887677722886580189)
	f(AlgorithmSHA256CBOR, 1, "", "tenant-salt", signed(1, 9), 17523763739011214599, 5539082657016586404)
	f(AlgorithmSHA256CBOR, 3, "adapter-A", "tenant-salt", signed(1, 11), 2066122112749960711, 7121320371330897934)
	f(AlgorithmSHA256, 4, "", "", signed(1, 7))

	// A strategy of SGLang fixes its look-ahead.
	for _, strategy := range []string{StrategySGLang, StrategySGLangBigram} {
		if p, err := NewProfile(sglang(strategy)); err != nil || p.WithAhead(3) != p {
			t.Errorf("%s takes a look-ahead (%v)", strategy, err)
		}
	}
}

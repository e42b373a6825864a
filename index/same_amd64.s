//go:build !race

#include "textflag.h"

// func sameWords(a, b *uint64, n int) int
TEXT ·sameWords(SB), NOSPLIT, $0-32
	MOVQ a+0(FP), SI
	MOVQ b+8(FP), DI
	MOVQ n+16(FP), CX
	XORQ AX, AX
	LEAQ -8(CX), DX // the last place where eight words begin

eight:
	CMPQ     AX, DX
	JGT      one
	MOVOU    (SI)(AX*8), X0
	MOVOU    16(SI)(AX*8), X1
	MOVOU    32(SI)(AX*8), X2
	MOVOU    48(SI)(AX*8), X3
	MOVOU    (DI)(AX*8), X4
	MOVOU    16(DI)(AX*8), X5
	MOVOU    32(DI)(AX*8), X6
	MOVOU    48(DI)(AX*8), X7
	PCMPEQL  X4, X0
	PCMPEQL  X5, X1
	PCMPEQL  X6, X2
	PCMPEQL  X7, X3
	PAND     X1, X0
	PAND     X3, X2
	PAND     X2, X0
	PMOVMSKB X0, BX
	CMPL     BX, $0xffff
	JNE      one
	ADDQ     $8, AX
	JMP      eight

one:
	CMPQ AX, CX
	JGE  done
	MOVQ (SI)(AX*8), BX
	CMPQ BX, (DI)(AX*8)
	JNE  done
	INCQ AX
	JMP  one

done:
	MOVQ AX, ret+24(FP)
	RET

#include "textflag.h"

// How readWindowsAVX2 reads the elements of a window:
//
//	64 bytes --compare--> masks of digits, commas and zeros, one bit a byte
//	masks    --check----> each byte is part of an element or a separator
//	commas   --load-----> the eight bytes before each comma, eight elements at a time
//	         --reverse--> the last digit first; all bytes behind the first non-digit are cleared
//	         --weigh----> numbers of 2, 4 and 8 digits

// Constants of 32 bytes, the same in both halves.

#define PATTERN(name, value) \
DATA name<>+0(SB)/8, value  \
DATA name<>+8(SB)/8, value  \
DATA name<>+16(SB)/8, value \
DATA name<>+24(SB)/8, value \
GLOBL name<>(SB), RODATA|NOPTR, $32

PATTERN(zeros, $0x3030303030303030)
PATTERN(nines, $0x0909090909090909)
PATTERN(commas, $0x2c2c2c2c2c2c2c2c)
PATTERN(spaces, $0x2020202020202020)
PATTERN(ones, $0xffffffffffffffff)
PATTERN(weigh2, $0x0a010a010a010a01)
PATTERN(weigh4, $0x0064000100640001)
PATTERN(weigh8, $0x2710000127100001)

DATA reverse<>+0(SB)/8, $0x0001020304050607
DATA reverse<>+8(SB)/8, $0x08090a0b0c0d0e0f
DATA reverse<>+16(SB)/8, $0x0001020304050607
DATA reverse<>+24(SB)/8, $0x08090a0b0c0d0e0f
GLOBL reverse<>(SB), RODATA|NOPTR, $32

// CLASSIFY compares the 32 bytes in text. Afterwards text marks the digits, comma the
// commas, zero the zeros, and known marks digits, commas and spaces.
#define CLASSIFY(text, comma, zero, known) \
	VPCMPEQB Y12, text, comma \
	VPCMPEQB Y11, text, known \
	VPXOR    Y15, text, text  \
	VPCMPEQB Y7, text, zero   \
	VPMINUB  Y14, text, Y8    \
	VPCMPEQB Y8, text, text   \
	VPOR     comma, known, known \
	VPOR     text, known, known

// MASK joins the bits of two halves.
#define MASK(low, high, bits) \
	VPMOVMSKB low, bits  \
	VPMOVMSKB high, R13  \
	SHLQ      $32, R13   \
	ORQ       R13, bits

// ELEMENTS loads the eight bytes before each of two commas.
#define ELEMENTS(pair) \
	TZCNTQ  BX, AX                \
	BLSRQ   BX, BX                \
	VMOVQ   -8(SI)(AX*1), pair    \
	TZCNTQ  BX, DX                \
	BLSRQ   BX, BX                \
	VMOVHPS -8(SI)(DX*1), pair, pair

// DIGITS makes two numbers of four digits out of the text of each of four elements. Y6
// gets the sign of each element that has more than seven digits.
#define DIGITS(text, mark) \
	VPSHUFB    Y10, text, text \
	VPXOR      Y15, text, text \
	VPCMPGTB   Y14, text, mark \
	VPADDQ     Y9, mark, Y8    \
	VPANDN     Y8, mark, mark  \
	VPOR       mark, Y6, Y6    \
	VPAND      mark, text, text \
	VPMADDUBSW Y13, text, text \
	VPMADDWD   weigh4<>(SB), text, text

// func readWindowsAVX2(list *uint32, room int, text *byte, windows int) (n, comma int)
TEXT ·readWindowsAVX2(SB), NOSPLIT, $0-48
	MOVQ list+0(FP), DI
	MOVQ room+8(FP), R8
	MOVQ text+16(FP), SI
	MOVQ windows+24(FP), CX

	LEAQ -128(DI)(R8*4), R8 // the last place with room for crowd elements
	LEAQ -1(SI), R12        // the comma behind the last element
	XORL R9, R9             // whether the byte before the window is a digit
	MOVL $1, R10            // whether that byte is a comma
	XORL R11, R11           // whether that byte is a zero at the start of an element

	VMOVDQU zeros<>(SB), Y15
	VMOVDQU nines<>(SB), Y14
	VMOVDQU weigh2<>(SB), Y13
	VMOVDQU commas<>(SB), Y12
	VMOVDQU spaces<>(SB), Y11
	VMOVDQU reverse<>(SB), Y10
	VMOVDQU ones<>(SB), Y9
	VPXOR   Y7, Y7, Y7

window:
	CMPQ CX, $0
	JLE  done
	CMPQ DI, R8
	JHI  done

	VMOVDQU (SI), Y0
	VMOVDQU 32(SI), Y1
	CLASSIFY(Y0, Y2, Y3, Y6)
	VPMOVMSKB Y6, AX
	CLASSIFY(Y1, Y5, Y4, Y6)
	VPMOVMSKB Y6, DX
	ANDL AX, DX
	CMPL DX, $-1
	JNE  done

	MASK(Y0, Y1, AX) // digits
	MASK(Y2, Y5, BX) // commas
	MASK(Y3, Y4, DX) // zeros

	// A byte behind a digit is a digit or a comma, and each comma is behind a digit.
	LEAQ  (R9)(AX*2), R13
	MOVQ  AX, R9
	SHRQ  $63, R9
	ANDNQ R13, AX, R15
	CMPQ  R15, BX
	JNE   done

	// No digit is behind a zero at the start of an element.
	ANDNQ AX, R13, R13
	ANDQ  DX, R13
	LEAQ  (R11)(R13*2), DX
	MOVQ  R13, R11
	SHRQ  $63, R11
	TESTQ AX, DX
	JNE   done

	// All bytes are digits, commas, or spaces behind commas.
	LEAQ (R10)(BX*2), DX
	MOVQ BX, R10
	SHRQ $63, R10
	ORQ  BX, AX
	ORQ  DX, AX
	CMPQ AX, $-1
	JNE  done

	TESTQ   BX, BX
	JEQ     next
	POPCNTQ BX, R15
	BSRQ    BX, R13
	MOVQ    DI, R14
	VPXOR   Y6, Y6, Y6

group:
	// Y0 gets elements 0 1 4 5, Y1 gets elements 2 3 6 7. Behind the last comma of
	// the window the count of zeros is 64: then the elements do not count.
	ELEMENTS(X0)
	ELEMENTS(X1)
	ELEMENTS(X2)
	ELEMENTS(X3)
	VINSERTI128 $1, X2, Y0, Y0
	VINSERTI128 $1, X3, Y1, Y1
	DIGITS(Y0, Y4)
	DIGITS(Y1, Y5)
	VPACKUSDW Y1, Y0, Y0
	VPMADDWD weigh8<>(SB), Y0, Y0
	VMOVDQU  Y0, (R14)
	ADDQ     $32, R14
	TESTQ    BX, BX
	JNE      group

	VMOVMSKPD Y6, AX
	TESTL     AX, AX
	JNE       done
	LEAQ      (DI)(R15*4), DI
	LEAQ      (SI)(R13*1), R12

next:
	ADDQ $64, SI
	DECQ CX
	JMP  window

done:
	VZEROUPPER
	SUBQ list+0(FP), DI
	SHRQ $2, DI
	MOVQ DI, n+32(FP)
	SUBQ text+16(FP), R12
	MOVQ R12, comma+40(FP)
	RET

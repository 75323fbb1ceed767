package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// goMutants makes every mutant of a package of a repository, but for its tests.
func goMutants(root, pkg string) ([]mutant, error) {
	files, err := filepath.Glob(filepath.Join(root, pkg, "*.go"))
	if err != nil {
		return nil, err
	}
	var all []mutant
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		file, err := filepath.Rel(root, path)
		if err != nil {
			return nil, err
		}
		made, err := mutateGo(filepath.ToSlash(file), string(text))
		if err != nil {
			return nil, err
		}
		all = append(all, made...)
	}
	return all, nil
}

var swapped = map[token.Token]token.Token{
	token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR, token.EQL: token.NEQ, token.NEQ: token.EQL,
}

// mutateGo makes every mutant of a Go file.
func mutateGo(file, text string) ([]mutant, error) {
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, file, text, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	at := func(p token.Pos) int { return set.Position(p).Offset }
	var changes []mutation
	replace := func(from, to token.Pos, with string) {
		changes = append(changes, mutation{from: at(from), to: at(to), with: with})
	}
	drop := func(n ast.Node) {
		changes = append(changes, mutation{from: at(n.Pos()), to: at(n.End()), drops: true})
	}
	negated := map[ast.Expr]bool{}
	negate := func(e ast.Expr) {
		if e == nil {
			return
		}
		negated[e] = true
		replace(e.Pos(), e.End(), "!("+text[at(e.Pos()):at(e.End())]+")")
	}
	// Statements that are no part of another one can be left out.
	dropAmong := func(list []ast.Stmt) {
		for _, s := range list {
			switch s := s.(type) {
			case *ast.ExprStmt, *ast.IncDecStmt, *ast.SendStmt, *ast.GoStmt, *ast.DeferStmt:
				drop(s)
			case *ast.AssignStmt:
				if s.Tok != token.DEFINE {
					drop(s)
				}
			case *ast.ReturnStmt:
				if len(s.Results) == 0 {
					drop(s)
				}
			}
		}
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GenDecl:
			return n.Tok != token.IMPORT
		case *ast.ArrayType:
			return false // its length is no number that anything is compared with
		case *ast.IfStmt:
			negate(n.Cond)
		case *ast.ForStmt:
			negate(n.Cond)
		case *ast.SwitchStmt:
			if n.Tag == nil {
				for _, c := range n.Body.List {
					for _, e := range c.(*ast.CaseClause).List {
						negate(e)
					}
				}
			}
		case *ast.BlockStmt:
			dropAmong(n.List)
		case *ast.CaseClause:
			dropAmong(n.Body)
		case *ast.CommClause:
			dropAmong(n.Body)
		case *ast.BinaryExpr:
			if n.Op == token.LAND || n.Op == token.LOR { // without each operand
				replace(n.X.End(), n.Y.End(), "")
				replace(n.X.Pos(), n.Y.Pos(), "")
			} else if to, ok := swapped[n.Op]; ok && !(negated[n] && (n.Op == token.EQL || n.Op == token.NEQ)) {
				replace(n.OpPos, n.OpPos+token.Pos(len(n.Op.String())), to.String())
			}
		case *ast.BasicLit:
			if v, err := strconv.ParseInt(n.Value, 0, 64); err == nil && n.Kind == token.INT {
				replace(n.Pos(), n.End(), strconv.FormatInt(v+1, 10))
			}
		case *ast.Ident:
			switch n.Name {
			case "true":
				replace(n.Pos(), n.End(), "false")
			case "false":
				replace(n.Pos(), n.End(), "true")
			}
		}
		return true
	})
	slices.SortStableFunc(changes, func(a, b mutation) int { return a.from - b.from })
	var all []mutant
	for _, c := range changes {
		all = append(all, c.apply(file, text))
	}
	return all, nil
}

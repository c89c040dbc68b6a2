"""Gradients of a small ViT when what backward needs is kept in 8 bits (a scale per 64, stochastic rounding), as cosines to exact ones, per matrix.

python tests/bench/activations_8bit.py [width hidden heads depth tokens images]; forward is exact, the softmax sums too.
"""
import math
import sys

import torch
torch.manual_seed(0); torch.set_num_threads(2)
D, F, H, L, N, B = [int(x) for x in sys.argv[1:7]] if len(sys.argv) > 6 else (192, 768, 3, 12, 65, 4)
def q8(x):
    s=x.shape; g=x.reshape(-1,64); m=g.abs().amax(1,keepdim=True)/127; m=torch.where(m==0,torch.ones_like(m),m)
    return (torch.floor(g/m+torch.rand_like(g)).clamp(-127,127)*m).reshape(s)
class Lin(torch.autograd.Function): # x W^T + b with what backward needs of x given apart
    @staticmethod
    def forward(c,x,kept,w,b): c.save_for_backward(kept,w); return x@w.t()+b
    @staticmethod
    def backward(c,g):
        k,w=c.saved_tensors; g2=g.reshape(-1,g.shape[-1])
        return g@w,None,g2.t()@k.reshape(-1,k.shape[-1]),g2.sum(0)
class Gelu(torch.autograd.Function):
    @staticmethod
    def forward(c,h,kept): c.save_for_backward(kept); return torch.nn.functional.gelu(h)
    @staticmethod
    def backward(c,g):
        k,=c.saved_tensors
        p=0.5*(1+torch.erf(k/math.sqrt(2)))+k*torch.exp(-k*k/2)/math.sqrt(2*math.pi)
        return g*p,None
class Norm(torch.autograd.Function): # affine outside; kept: the normalised x
    @staticmethod
    def forward(c,x,kept,r): c.save_for_backward(kept,r); return (x-x.mean(-1,keepdim=True))*r
    @staticmethod
    def backward(c,g):
        k,r=c.saved_tensors
        return r*(g-g.mean(-1,keepdim=True)-k*(g*k).mean(-1,keepdim=True)),None,None
class Attn(torch.autograd.Function): # kept: q,k,v (and the lse of the true ones), out
    @staticmethod
    def forward(c,q,k,v,kq,kk,kv,ko):
        s=q@k.transpose(-1,-2)/math.sqrt(q.shape[-1]); l=torch.logsumexp(s,-1,keepdim=True)
        c.save_for_backward(kq,kk,kv,ko,l); return torch.exp(s-l)@v
    @staticmethod
    def backward(c,g):
        q,k,v,o,l=c.saved_tensors; d=math.sqrt(q.shape[-1])
        p=torch.exp(q@k.transpose(-1,-2)/d-l); dv=p.transpose(-1,-2)@g
        ds=p*(g@v.transpose(-1,-2)-(g*o).sum(-1,keepdim=True))/d
        return ds@k,ds.transpose(-1,-2)@q,dv,None,None,None,None
def make():
    ps=[]
    for l in range(L):
        n=lambda a,b,s=0.02:(torch.randn(a,b)*s)
        ps.append(dict(g1=torch.ones(D),b1=torch.zeros(D),wq=n(3*D,D,0.05),bq=torch.zeros(3*D),wp=n(D,D,0.05),bp=torch.zeros(D),g2=torch.ones(D),b2=torch.zeros(D),w1=n(F,D,0.05),c1=torch.zeros(F),w2=n(D,F,0.05),c2=torch.zeros(D)))
    for p in ps:
        for k in p: p[k].requires_grad_(True)
    return ps
def norm(x,g,b,on):
    with torch.no_grad():
        r=1/torch.sqrt(x.var(-1,unbiased=False,keepdim=True)+1e-6); xh=(x-x.mean(-1,keepdim=True))*r; k=q8(xh) if on else xh
        y_kept=k*g+b
    return Norm.apply(x,k,r)*g+b, y_kept
def run(ps,x,level):
    h8,a8,n8,q8on=level
    for p in ps:
        y,yk=norm(x,p['g1'],p['b1'],n8)
        qkv=Lin.apply(y,yk,p['wq'],p['bq']).reshape(B,N,3,H,D//H).permute(2,0,3,1,4); q,k,v=qkv
        with torch.no_grad():
            s=q@k.transpose(-1,-2)/math.sqrt(D//H); o=torch.softmax(s,-1)@v
            ok=q8(o.contiguous()) if a8 else o
            kq,kk,kv=[q8(t.contiguous()) if q8on else t for t in (q,k,v)]
        a=Attn.apply(q,k,v,kq,kk,kv,ok).transpose(1,2).reshape(B,N,D)
        x=x+Lin.apply(a,ok.transpose(1,2).reshape(B,N,D),p['wp'],p['bp'])
        y,yk=norm(x,p['g2'],p['b2'],n8)
        h=Lin.apply(y,yk,p['w1'],p['c1'])
        with torch.no_grad(): hk=q8(h) if h8 else h
        x=x+Lin.apply(Gelu.apply(h,hk),torch.nn.functional.gelu(hk),p['w2'],p['c2'])
    return x[:,0]
x0=torch.randn(B,N,D)+0.5*torch.randn(1,N,D); x0[...,7]*=20 # an outlier channel
t=torch.randn(B,D); ps=make()
def grads(level):
    loss=((run(ps,x0,level)-t)**2).mean(); g=torch.autograd.grad(loss,[p[k] for p in ps for k in ('wq','wp','w1','w2')]); return g
ref=grads((0,0,0,0))
for name,lv in [('h',(1,0,0,0)),('h, attention',(1,1,0,0)),('h, attention, norms',(1,1,1,0)),('all',(1,1,1,1))]:
    g=grads(lv); c=[torch.nn.functional.cosine_similarity(a.flatten(),b.flatten(),0).item() for a,b in zip(g,ref)]
    print(name,'worst %.6f at block %d %s'%(min(c),c.index(min(c))//4,('wq','wp','w1','w2')[c.index(min(c))%4]),'median %.6f'%sorted(c)[len(c)//2],'below 0.9999: %d of %d'%(sum(v<0.9999 for v in c),len(c)),flush=True)
